"""Methods that differ in the objective, or in how the gradients of domains are combined: one task per source domain."""

from medic.methods.method import Method
from medic.methods.search import log10, uniform
from medic.strategies import AndMask, Joint, SandMask
from medic.tasks import Grid

DOMAINS = Grid(3, steps=1, pairing="ordered")
"""Every source domain is a task, all in one step, always in the same order."""

ALIGNMENT = (
    Method(
        "groupdro",
        "domains that are met with more loss weigh more",
        "objective: exponential weights on the domains' risks",
        "Sagawa et al. 2020",
        DOMAINS,
        Joint(),
        forward="task",
        each_domain=True,
        penalty="groupdro",
        search={"eta": log10("groupdro_eta", -3, -1)},
    ),
    Method(
        "vrex",
        "risks that are equal in all domains",
        "objective: penalty on the variance of the domains' risks",
        "Krueger et al. 2021",
        DOMAINS,
        Joint(),
        each_domain=True,
        penalty="vrex",
        search={
            "weight": log10("vrex_lambda", -1, 5),
            "anneal": log10("vrex_penalty_anneal_iters", 0, 4, whole=True),
        },
    ),
    Method(
        "coral",
        "features with the same mean and covariance in all domains",
        "objective: penalty on differences of feature moments",
        "Sun and Saenko 2016",
        DOMAINS,
        Joint(),
        forward="task",
        each_domain=True,
        penalty="coral",
        search={"gamma": log10("mmd_gamma", -1, 1)},
    ),
    Method(
        "rsc",
        "learn without the features that matter most",
        "objective: the most supporting features of some samples are muted",
        "Huang et al. 2020",
        Grid(),
        Joint(),
        change="rsc",
        search={
            "features": uniform("rsc_f_drop_factor", 0, 0.5),
            "samples": uniform("rsc_b_drop_factor", 0, 0.5),
        },
    ),
    Method(
        "fishr",
        "gradients of the classifier that vary alike in all domains",
        "objective: penalty on differences of gradient variances",
        "Rame et al. 2022",
        DOMAINS,
        Joint(),
        each_domain=True,
        penalty="fishr",
        search={
            "weight": log10("lambda", 1, 4),
            "anneal": uniform("penalty_anneal_iters", 0, 5000, whole=True),
            "ema": uniform("ema", 0.90, 0.99),
        },
    ),
    Method(
        "hgp",
        "the same gradient and curvature along it in all domains",
        "objective: penalty on differences of head gradients and Hessian-gradient products",
        "Hemati et al. 2023",
        DOMAINS,
        Joint(),
        forward="task",
        each_domain=True,
        penalty="hgp",
        search={"alpha": log10("penalty_alpha", -5, -3), "beta": log10("penalty_beta", -3, -1)},
    ),
    Method(
        "hutchinson",
        "the same gradient and curvature per weight in all domains",
        "objective: penalty on differences of head gradients and Hessian diagonals",
        "Hemati et al. 2023",
        DOMAINS,
        Joint(),
        forward="task",
        each_domain=True,
        penalty="hutchinson",
        search={"alpha": log10("penalty_alpha", 1, 4), "beta": log10("penalty_beta", 2, 6)},
    ),
    Method(
        "andmask",
        "move where the gradients of all domains agree in sign",
        "strategy: coordinates without agreement are masked",
        "Parascandolo et al. 2021",
        Grid(3, pairing="ordered"),
        AndMask(),
        forward="task",
        each_domain=True,
        search={"tau": uniform("tau", 0.5, 1)},
    ),
    Method(
        "sandmask",
        "move where the gradients of all domains agree, by how much",
        "strategy: a smooth mask from agreement and spread",
        "Shahtalebi et al. 2021",
        Grid(3, pairing="ordered"),
        SandMask(),
        forward="task",
        each_domain=True,
        search={"tau": uniform("tau", 0, 1), "k": log10("k", -3, 5)},
    ),
)
