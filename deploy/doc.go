// Package deploy has no code: its tests build the image and run it, and run what the
// manifests and compose files beside it say, as far as one machine can without a cluster
// and without a container engine. It is a module of its own, so that what Kubernetes
// brings along stays out of the program.
package deploy
