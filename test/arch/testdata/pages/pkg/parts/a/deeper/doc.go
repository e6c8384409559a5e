// Package deeper is part of a fixture.
package deeper
