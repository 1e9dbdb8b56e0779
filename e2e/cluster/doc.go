// Package cluster runs sidecars and workers on database clusters while servers fail, and checks that
// only what the cluster can lose is lost.
package cluster
