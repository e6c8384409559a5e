package a_test

import (
	_ "example.com/m/pkg/whole"
)
