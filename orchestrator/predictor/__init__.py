"""Predictors: what a request's stages will take on each endpoint, and how far off that may be."""

from orchestrator.predictor.stages import StagePredictor

__all__ = ["StagePredictor"]
