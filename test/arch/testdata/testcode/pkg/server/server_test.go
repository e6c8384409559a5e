package server

import (
	_ "example.com/m/pkg/centre/centretest"
)
