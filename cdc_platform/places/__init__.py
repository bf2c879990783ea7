"""Where things lie: in a folder of this machine, or under a prefix of an object store. One way to look at either.

It knows files and folders by name and no table. A folder of a store is there as soon as something lies in it.
"""

from cdc_platform.places.fetched import Kept, fetching_anew, fetching_once
from cdc_platform.places.listing import Listing
from cdc_platform.places.naming import address_of, is_address, place_of, root_of
from cdc_platform.places.place import Place, Seen
from cdc_platform.places.stored import Stored, options

__all__ = [
    "Kept",
    "Listing",
    "Place",
    "Seen",
    "Stored",
    "address_of",
    "fetching_anew",
    "fetching_once",
    "is_address",
    "options",
    "place_of",
    "root_of",
]
