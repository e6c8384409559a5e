// Package whole is part of a fixture.
package whole
