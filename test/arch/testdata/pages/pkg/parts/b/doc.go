// Package b is part of a fixture.
package b
