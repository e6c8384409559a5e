package storage

import (
	"fmt"
	"sync/atomic"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"k8s.io/apiserver/pkg/storage"
	etcdfeature "k8s.io/apiserver/pkg/storage/feature"
)

// inProcessClients counts clients without a network address, to give each a unique endpoint.
var inProcessClients atomic.Int64

// checkFeatures makes the global feature checker of upstream's storage layer check the client. It
// checks each endpoint, but an in-process client has none. Without a check, consistent lists would not
// be served from the watch cache, and streaming lists not at all. etcd3 does this for each store,
// but a server may have none until it is ready.
func checkFeatures(client *kubernetes.Client) {
	if len(client.Endpoints()) > 0 {
		etcdfeature.DefaultFeatureSupportChecker.CheckClient(client.Ctx(), client.Client, storage.RequestWatchProgress)
		return
	}
	endpoint := fmt.Sprintf("in-process-%d", inProcessClients.Add(1))
	etcdfeature.DefaultFeatureSupportChecker.CheckClient(client.Ctx(), inProcess{Client: client.Client, endpoint: endpoint}, storage.RequestWatchProgress)
}

// inProcess is a client that reports one endpoint.
type inProcess struct {
	*clientv3.Client
	endpoint string
}

func (c inProcess) Endpoints() []string { return []string{c.endpoint} }
