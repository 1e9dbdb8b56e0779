// Package config tests reloads, secrets, limits and hostile clients.
package config
