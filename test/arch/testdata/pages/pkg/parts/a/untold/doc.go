// Package untold is part of a fixture.
package untold
