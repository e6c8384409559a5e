// Package server is part of a fixture.
package server

import (
	_ "example.com/m/pkg/centre/centretest"
)
