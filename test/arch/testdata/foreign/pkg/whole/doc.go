// Package whole is part of a fixture.
package whole

import (
	_ "k8s.io/kubernetes/pkg/apis/core"
	_ "github.com/kcp-dev/sdk/client"
	_ "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	_ "github.com/kcp-dev/kcp/pkg/server"
	_ "k8s.io/kubernetes-other"
)
