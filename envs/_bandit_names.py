"""Names of bandit arms: pairs of a safe and a risky sounding one, and plain letters."""

import hashlib
import string
from typing import TypeAlias

from ragen_bench.symbolic import Split

SAFE = (
    "Auditor Baker Barber Butcher Carpenter Caretaker Cobbler Cook Curator Dentist "
    "Dietitian Doorman Florist Grocer Housekeeper Janitor Judge Lecturer Locksmith "
    "Mason Midwife Miller Notary Optician Orderly Paralegal Pastor Plumber Potter "
    "Principal Proofreader Registrar Shepherd Shopkeeper Statistician Stonecutter "
    "Tailor Tutor Typist Usher Verger Watchmaker Weaver Welder Zookeeper "
    "Tortoise Sheep Cow Snail Koala Sloth Hen Donkey Goose Manatee Panda Hamster Duck "
    "Oyster Beaver Anchor Savings Pension Bond Harbor Shelter Pillow Blanket Brick Oak "
    "Meadow Lighthouse Cottage Deposit Vault Fortress Helmet Umbrella Clock Porridge"
).split()
"""Occupations, animals and things that sound safe."""

RISKY = (
    "Gambler Stuntman Daredevil Speculator TreasureHunter Pirate Racer Bullfighter "
    "Astronaut Inventor Actor Singer Poet Novelist Comedian Dancer Magician Prospector "
    "Mountaineer Smuggler Mercenary Spy Gladiator Skydiver Surfer Boxer Jockey Acrobat "
    "Founder Dealmaker Arbitrageur DayTrader Influencer Streamer Wildcatter "
    "BountyHunter Adventurer StormChaser Conqueror Hacker Bluffer Buccaneer Outlaw "
    "Fugitive Rebel Cobra Shark Panther Scorpion Wolf Viper Cheetah Falcon Leopard "
    "Piranha Jaguar Hornet Crocodile Wolverine Tiger Lottery Jackpot Roulette Casino "
    "Dice Volcano Rocket Lightning Hurricane Avalanche Dynamite Tornado Wildfire "
    "Fireworks Moonshot Gamble Wager Thunder Comet Blackjack"
).split()
"""Occupations, animals and things that sound risky."""

LETTERS = tuple(string.ascii_uppercase)

_HELD_OUT = 18
"""Safe names, and as many risky ones, in each of the splits dev and test."""


def _by_split(names: list[str]) -> dict[Split, tuple[str, ...]]:
    """Deal names out in an order that nobody chose: that of their BLAKE2b hash."""
    order = sorted(names, key=lambda name: hashlib.blake2b(name.encode()).digest())
    return {
        "test": tuple(order[:_HELD_OUT]),
        "dev": tuple(order[_HELD_OUT : 2 * _HELD_OUT]),
        "train": tuple(order[2 * _HELD_OUT :]),
    }


SAFE_OF = _by_split(SAFE)
RISKY_OF = _by_split(RISKY)
SPLIT_OF: dict[str, Split] = {
    name: split
    for table in (SAFE_OF, RISKY_OF)
    for split, names in table.items()
    for name in names
}
"""The one split where levels of informative names use a name."""

Pairs: TypeAlias = tuple[tuple[str, str], ...]
"""Pairs of a safe and a risky name."""


def _pairs(text: str) -> Pairs:
    pairs = [item.split("/") for item in text.split()]
    return tuple((safe, risky) for safe, risky in pairs)


def _everywhere(pairs: Pairs) -> dict[Split, Pairs]:
    return {"train": pairs, "dev": pairs, "test": pairs}


_V2_TRAIN = _pairs(
    "Teacher/Trader Nurse/StartupFounder Librarian/Investor Accountant/StockBroker "
    "Engineer/RealEstateAgent Pharmacist/Musician Clerk/Freelancer Technician/Youtuber "
    "Planner/Artist Postman/Pilot Banker/VentureCapitalist Gardener/Cryptominer"
)
_V2_TEST = _pairs(
    "Receptionist/Explorer Archivist/Filmmaker Bookkeeper/Consultant "
    "SocialWorker/Photographer Mechanic/GameDesigner Secretary/Entrepreneur "
    "Cashier/DataScientist CivilServant/StartupAccelerator"
)
_TEACHER = _pairs("Teacher/Engineer")

PAIRS: dict[str, dict[Split, Pairs]] = {
    "base": _everywhere(
        _pairs(
            "Phoenix/Dragon Teacher/Engineer Librarian/Trader Nurse/StartupFounder "
            "Accountant/StockBroker"
        )
    ),
    "ragen-v1": _everywhere(_pairs("Phoenix/Dragon")),
    "ragen-v1-generalization": {
        "train": _TEACHER,
        "dev": _TEACHER,
        "test": _pairs("Librarian/Trader"),
    },
    "ragen-v2": {"train": _V2_TRAIN, "dev": _V2_TRAIN, "test": _V2_TEST},
}
"""The fixed pairs of RAGEN (arXiv 2504.20073 and its second version's code)."""
