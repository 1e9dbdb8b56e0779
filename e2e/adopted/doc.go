// Package adopted tests queues in tables that another application owns, beside the application's own consumers.
package adopted
