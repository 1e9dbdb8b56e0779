// Package adopted tests queues in tables that another application owns, runOwnConsumer its own consumers.
package adopted
