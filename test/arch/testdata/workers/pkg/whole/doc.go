// Package whole has controllers with keys of all kinds.
package whole

import (
	"github.com/kcp-dev/logicalcluster/v3"

	"example.com/elsewhere/client"
	"example.com/elsewhere/reconcile"
)

type named struct{ cluster logicalcluster.Name }

func (n named) LogicalCluster() logicalcluster.Name { return n.cluster }

type nameless struct{ Cluster logicalcluster.Name }

var (
	_ = reconcile.Config[client.Key]{Workers: 4}
	_ = reconcile.Config[logicalcluster.Name]{}
	_ = reconcile.Config[named]{Workers: 4}
	_ = reconcile.Config[string]{Workers: 1}

	_ = reconcile.Config[nameless]{Workers: 4}
	_ = reconcile.Config[string]{}
)
