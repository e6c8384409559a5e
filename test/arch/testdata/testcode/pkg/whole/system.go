//go:build linux || darwin

package whole
