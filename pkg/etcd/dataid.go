package etcd

import (
	"context"
	"fmt"
	"path"

	"github.com/google/uuid"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// dataIDKey is the key of the data ID, below the prefix. It has fewer segments than the keys of objects.
const dataIDKey = "shardplane-data-id"

// DataID returns the random ID of the data below the prefix, which the first server creates. Data that was lost and
// created again has another ID, a copy has the same.
func (h *Handle) DataID(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, identityTimeout)
	defer cancel()
	key, fresh := path.Join(h.prefix, dataIDKey), uuid.NewString()
	resp, err := h.client.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0)).
		Then(clientv3.OpPut(key, fresh)).Else(clientv3.OpGet(key)).Commit()
	if err != nil {
		return "", fmt.Errorf("reading the data ID from %s: %w", h.where, err)
	}
	if resp.Succeeded {
		return fresh, nil
	}
	for _, kv := range resp.Responses[0].GetResponseRange().GetKvs() {
		return string(kv.Value), nil
	}
	return "", fmt.Errorf("the key %s was deleted from %s concurrently: restart the server", key, h.where)
}
