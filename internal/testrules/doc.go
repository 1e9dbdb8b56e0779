// Package testrules holds the tests to their own rules. It has tests only.
package testrules
