"""Abbreviations of time zones: those of PostgreSQL's default set that have one offset, each under it (east is +).

Not among them are those whose offset has changed over the years (MSK, SGT, ...), since what they mean depends on the
date, and the names of UTC, which `datetimes.time_zone` knows.
"""

from __future__ import annotations

_BY_OFFSET = {
    "-10": "HST TAHT",
    "-09:30": "MART",
    "-09": "AKST GAMT",
    "-08": "AKDT PST",
    "-07": "MST PDT",
    "-06": "CST GALT MDT",
    "-05": "ACT CDT COT EST PET",
    "-04": "AMT AST BOT EDT",
    "-03:30": "NFT NST",
    "-03": "ADT BRA BRT CLST GFT PMST PYST UYT WGT",
    "-02:30": "NDT",
    "-02": "BRST FNT PMDT UYST WGST",
    "-01": "AZOT EGT FNST",
    "+00": "AZOST EGST UCT UT WET",
    "+01": "BST CET MET MEZ WAT WETDST",
    "+02": "BDST CEST CETDST EET IST MEST MESZ METDST SAST",
    "+03": "EAT EEST EETDST FET IDT",
    "+03:30": "IRT",
    "+04": "MSD MUT RET SCT",
    "+04:30": "AFT",
    "+05": "MUST MVT PKT TFT TJT UZT",
    "+05:45": "NPT",
    "+06": "ALMT BDT BTT KGST PKST UZST XJT YEKST",
    "+06:30": "MMT",
    "+07": "ALMST CXT ICT WAST",
    "+08": "AWST BNT BORT CCT HKT MYT PHT WADT",
    "+08:45": "ACWST",
    "+09": "AWSST JAYT JST KST PWT ULAST WDT",
    "+09:30": "ACST CAST",
    "+10": "AEST CHUT DDUT KDT LIGT MPT PGT TRUT YAPT",
    "+10:30": "ACDT ACSST CADT LHST SADT",
    "+11": "AEDT AESST PONT VUT",
    "+12": "FJT GILT MHT NZST NZT TVT WAKT WFT",
    "+12:45": "CHAST",
    "+13": "FJST NZDT TOT",
    "+13:45": "CHADT",
}
ABBREVIATIONS = {name: offset for offset, names in _BY_OFFSET.items() for name in names.split()}
