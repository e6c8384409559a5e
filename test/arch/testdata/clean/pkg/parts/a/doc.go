// Package a is part of a fixture.
//
//	a       is the whole
//	├── deeper  what is below it,
//	            told in two lines
package a

import (
	_ "example.com/m/pkg/centre"
	_ "example.com/m/pkg/parts/a/deeper"
	_ "github.com/kcp-dev/sdk/apis/core/v1alpha1"
)
