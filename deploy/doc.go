// Package deploy has only tests. They build and run the image, and run the manifests and compose
// files as far as one machine can without a cluster and a container engine. It is a separate
// module, so that the dependencies on Kubernetes are not dependencies of the program.
//
// Start with image_test.go, compose_run_test.go and kubernetes_run_test.go. container_test.go and
// pod_test.go are the runtime that they use.
package deploy
