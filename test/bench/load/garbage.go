package load

import (
	"context"
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// GarbageOptions say how Garbage loads a logical cluster.
type GarbageOptions struct {
	// Dependents are how many ConfigMaps one other owns.
	Dependents int
	// Spent returns what the server has computed so far.
	Spent func() (Spent, error)
	Run   string
}

// Spent is processor time of a server, and what of that its collector of garbage took.
type Spent struct{ All, Collector time.Duration }

// Garbage makes an owner with dependents in the target's logical cluster, deletes the owner, and
// returns how long it takes until the last dependent is gone, and what the server computes
// meanwhile.
func Garbage(ctx context.Context, target Target, o GarbageOptions) (elapsed time.Duration, spent Spent, err error) {
	client, err := target.client()
	if err != nil {
		return 0, Spent{}, err
	}
	maps := client.CoreV1().ConfigMaps(namespace)
	owner, err := maps.Create(ctx, configMap("owner-"+o.Run, "owner-"+o.Run, nil), metav1.CreateOptions{})
	if err != nil {
		return 0, Spent{}, fmt.Errorf("creating an owner: %w", err)
	}
	create := &phase{limit: int64(o.Dependents)}
	data := map[string]string{"data": strings.Repeat("x", 512)}
	run(ctx, create, make([]struct{}, populatingClients), func(ctx context.Context, _ struct{}, n int) error {
		dependent := configMap(objectName(o.Run, n), o.Run, data)
		dependent.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: owner.Name, UID: owner.UID}}
		_, err := maps.Create(ctx, dependent, metav1.CreateOptions{})
		return err
	})
	if err := create.recorder.FirstError(); err != nil {
		return 0, Spent{}, fmt.Errorf("creating dependents: %w", err)
	}
	before, err := o.Spent()
	if err != nil {
		return 0, Spent{}, err
	}
	begin := time.Now()
	if err := maps.Delete(ctx, owner.Name, metav1.DeleteOptions{}); err != nil {
		return 0, Spent{}, fmt.Errorf("deleting the owner: %w", err)
	}
	for left := 1; left > 0; {
		select {
		case <-ctx.Done():
			return 0, Spent{}, ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
		// A page of one object costs next to nothing; at resourceVersion 0 it is all of them.
		list, err := maps.List(ctx, metav1.ListOptions{LabelSelector: benchLabel + "=" + o.Run, Limit: 1})
		if err != nil {
			return 0, Spent{}, fmt.Errorf("listing dependents: %w", err)
		}
		left = len(list.Items)
	}
	elapsed = time.Since(begin)
	after, err := o.Spent()
	return elapsed, Spent{All: after.All - before.All, Collector: after.Collector - before.Collector}, err
}
