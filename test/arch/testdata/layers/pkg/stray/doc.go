// Package stray is part of a fixture.
package stray
