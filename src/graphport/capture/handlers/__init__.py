"""Handlers of operators that need more from the tracer than a shape rule."""
