// Package system tests what installs and starts the program: systemd, packages, releases, socket
// paths.
package system
