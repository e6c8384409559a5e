// Package centre is part of a fixture.
package centre
