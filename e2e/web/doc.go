// Package web tests the web page in a browser: Chromium, which Playwright drives, against a sidecar with workers.
//
// The tests in Go start the sidecars and store the jobs. Each runs a program in JavaScript with some scenarios. A
// scenario uses the page as an operator does, and fails the program at the first difference. Versions of the npm
// packages are in package.json, and Chromium is the one of the system.
package web
