"""Office-Home: everyday objects in four styles (Venkateswara et al., 2017)."""

from medic.data.benchmarks.base import AZURE, DOMAINBED, Benchmark, Download, File, Layout, azure, drive, keyed_drive
from medic.data.benchmarks.layouts import read_layouts

_CHECKSUM = "md5:b1c14819770c4448fd5b6d931031c91c"
_ORIGINAL = keyed_drive("0B81rNlvomiwed0V1YUxQdC1uOTg", "0-2SNWq0CDAuWOBRRBL7ZZsw")
_TSINGHUA = {
    "Art.tgz": "4691878067d04755beab",
    "Clipart.tgz": "0d41e7da4558408ea5aa",
    "Product.tgz": "76186deacd7c4fa0a679",
    "Real_World.tgz": "dee961894cc64b1da1d7",
}

BENCHMARK = Benchmark(
    name="office-home",
    description="65 office and household objects in four styles",
    reader=read_layouts,
    domains=("Art", "Clipart", "Product", "Real World"),
    classes=tuple(
        "Alarm_Clock Backpack Batteries Bed Bike Bottle Bucket Calculator Calendar Candles Chair Clipboards Computer "
        "Couch Curtains Desk_Lamp Drill Eraser Exit_Sign Fan File_Cabinet Flipflops Flowers Folder Fork Glasses Hammer "
        "Helmet Kettle Keyboard Knives Lamp_Shade Laptop Marker Monitor Mop Mouse Mug Notebook Oven Pan Paper_Clip Pen "
        "Pencil Postit_Notes Printer Push_Pin Radio Refrigerator Ruler Scissors Screwdriver Shelf Sink Sneakers Soda "
        "Speaker Spoon TV Table Telephone ToothBrush Toys Trash_Can Webcam".split()
    ),
    split="officehome-40-25",
    counts={"Art": (2427,), "Clipart": (4365,), "Product": (4439,), "Real World": (4357,)},
    layouts=(
        Layout(
            "folders",
            ("office_home", "OfficeHome", "OfficeHomeDataset_10072016"),
            lists={"val": ("../OfficeHome_list/crossval/*_val.txt", "OfficeHome_list/crossval/*_val.txt")},
        ),
        Layout("train and val folders", ("office_home_dg",), has_parts=True),
    ),
    domainbed="OfficeHome",
    download=Download(
        mirrors={
            "hemanthdv.org/officeHomeDataset.html": (File(_ORIGINAL, "OfficeHomeDataset_10072016.zip", _CHECKSUM),),
            DOMAINBED: (drive("1uY0pj7oFsjMxRwaD3Sxy0jgel0fsYXLC", "office_home.zip", _CHECKSUM),),
            AZURE: (azure("OfficeHome.zip"),),
            "thuml/Transfer-Learning-Library, tllib/vision/datasets/officehome.py": tuple(
                File(f"https://cloud.tsinghua.edu.cn/f/{key}/?dl=1", name) for name, key in _TSINGHUA.items()
            ),
        },
        page="https://www.hemanthdv.org/officeHomeDataset.html",
        contents="<domain>/<class>/<image> for the domains Art, Clipart, Product and Real World",
    ),
)
