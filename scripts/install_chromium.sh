#!/usr/bin/env bash
# Make sure that there is a Chromium and its driver for the browser tests.
#
#   bash scripts/install_chromium.sh
#
# On Debian, as root, it installs what is missing; elsewhere it says what to install.
set -euo pipefail

missing=()
command -v chromium >/dev/null || missing+=(chromium)
command -v chromedriver >/dev/null || missing+=(chromium-driver)
if [ ${#missing[@]} -eq 0 ]; then
    exit 0
fi
if ! command -v apt-get >/dev/null || [ "$(id -u)" -ne 0 ]; then
    echo "install_chromium.sh: the browser tests need ${missing[*]}; on Debian, as root:" >&2
    echo "    apt-get install chromium chromium-driver" >&2
    echo "elsewhere, put programs named chromium and chromedriver on PATH" >&2
    exit 1
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
chromium --version
