package etcd

import (
	"context"
	"fmt"
	"path"

	"github.com/google/uuid"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// dataIDKey, below the prefix, has the name of the data. It has too few segments to be the key of
// an object.
const dataIDKey = "shardplane-data-id"

// DataID returns the random name that the data below the prefix has. The first server that asks
// gives it one. Data that is lost and made anew has another one, and a copy the same.
func (h *Handle) DataID(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, identityTimeout)
	defer cancel()
	key, fresh := path.Join(h.prefix, dataIDKey), uuid.NewString()
	answer, err := h.client.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0)).
		Then(clientv3.OpPut(key, fresh)).Else(clientv3.OpGet(key)).Commit()
	if err != nil {
		return "", fmt.Errorf("reading from %s which data it has: %w", h.where, err)
	}
	if answer.Succeeded {
		return fresh, nil
	}
	for _, kv := range answer.Responses[0].GetResponseRange().GetKvs() {
		return string(kv.Value), nil
	}
	return "", fmt.Errorf("%s changes: its key %s was there and is not any more: start again", h.where, key)
}
