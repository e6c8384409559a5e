// Package a is part of a fixture.
package a

import (
	_ "example.com/m/pkg/centre"
	_ "example.com/m/pkg/parts/a/deeper"
	_ "github.com/kcp-dev/sdk/apis/core/v1alpha1"
)
