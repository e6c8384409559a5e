package centre_test

import (
	_ "testing"
	_ "example.com/m/pkg/server"
)
