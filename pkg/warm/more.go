package warm

import (
	_ "go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	_ "golang.org/x/sync/errgroup"
	_ "k8s.io/client-go/gentype"
	_ "k8s.io/component-helpers/auth/rbac/validation"
	_ "sigs.k8s.io/yaml"
)
