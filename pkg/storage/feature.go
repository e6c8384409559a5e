package storage

import (
	"fmt"
	"sync/atomic"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"k8s.io/apiserver/pkg/storage"
	etcdfeature "k8s.io/apiserver/pkg/storage/feature"
)

// inProcessClients counts clients without a network address, to tell them
// apart.
var inProcessClients atomic.Int64

// checkFeatures has the process-wide feature checker of the storage layer look
// at the client. It asks each endpoint of a client, of which an in-process
// client has none; without an answer, consistent lists would not be served
// from the watch caches and streaming lists not at all. etcd3 does it for each
// store, which servers that are not ready may have none of.
func checkFeatures(client *kubernetes.Client) {
	if len(client.Endpoints()) > 0 {
		etcdfeature.DefaultFeatureSupportChecker.CheckClient(client.Ctx(), client.Client, storage.RequestWatchProgress)
		return
	}
	endpoint := fmt.Sprintf("in-process-%d", inProcessClients.Add(1))
	etcdfeature.DefaultFeatureSupportChecker.CheckClient(client.Ctx(), inProcess{Client: client.Client, endpoint: endpoint}, storage.RequestWatchProgress)
}

// inProcess is a client that says that it has one endpoint.
type inProcess struct {
	*clientv3.Client
	endpoint string
}

// Endpoints returns the one endpoint.
func (c inProcess) Endpoints() []string { return []string{c.endpoint} }
