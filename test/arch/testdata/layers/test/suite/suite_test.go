package suite_test

import (
	_ "example.com/m/pkg/centre"
	_ "example.com/m/pkg/parts/a"
	_ "example.com/m/pkg/server"
)
