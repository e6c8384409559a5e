package garbagecollector

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/client-go/metadata"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/reconcile/events"
	"github.com/shardplane/shardplane/pkg/storage"
)

const (
	// component is the source of Events, as in Kubernetes.
	component = "garbage-collector-controller"
	// reasonInvalidOwner is the reason of the Event for an invalid reference.
	reasonInvalidOwner = "OwnerRefInvalidNamespace"
	// eventInterval is the minimum interval between two identical Events for an object.
	eventInterval = time.Minute
)

// patch contains the changes of an object; nil fields are unchanged.
type patch struct {
	references []metav1.OwnerReference
	finalizers []string
}

// body returns the merge patch for exactly this version of the object.
func (p patch) body(o object) ([]byte, error) {
	changed := map[string]any{"uid": o.uid, "resourceVersion": o.version}
	set := func(field string, there bool, value any, n int) {
		switch {
		case there && n == 0:
			changed[field] = nil
		case there:
			changed[field] = value
		}
	}
	set("ownerReferences", p.references != nil, p.references, len(p.references))
	set("finalizers", p.finalizers != nil, p.finalizers, len(p.finalizers))
	body, err := json.Marshal(map[string]any{"metadata": changed})
	if err != nil {
		return nil, fmt.Errorf("writing a patch: %w", err)
	}
	return body, nil
}

type writer struct {
	// deleting authenticates as the collector, local as the system, to which webhooks and policies do not apply.
	deleting, local *client.Factory
	lanes           lanes
}

func (*writer) of(f *client.Factory, kind storage.Kind, item Item) (metadata.ResourceInterface, error) {
	key := item.key()
	c, err := f.Cluster(key.Cluster.Path()).Metadata()
	if err != nil {
		return nil, err
	}
	if key.Namespace == "" {
		return c.Resource(kind.Resource), nil
	}
	return c.Resource(kind.Resource).Namespace(key.Namespace), nil
}

// remove deletes exactly this version of an object.
func (w *writer) remove(ctx context.Context, kind storage.Kind, item Item, o object, policy metav1.DeletionPropagation) error {
	done, err := w.lanes.acquire(item.LogicalCluster())
	if err != nil {
		return err
	}
	defer func() { done(err) }()
	ctx, cancel := context.WithTimeout(ctx, deleteTimeout)
	defer cancel()
	in, err := w.of(w.deleting, kind, item)
	if err != nil {
		return err
	}
	err = in.Delete(ctx, item.key().Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &o.uid, ResourceVersion: &o.version}, PropagationPolicy: &policy,
	})
	return err
}

// patch changes exactly this version of an object.
func (w *writer) patch(ctx context.Context, kind storage.Kind, item Item, o object, p patch) error {
	body, err := p.body(o)
	if err != nil {
		return err
	}
	in, err := w.of(w.local, kind, item)
	if err != nil {
		return err
	}
	_, err = in.Patch(ctx, item.key().Name, types.MergePatchType, body, metav1.PatchOptions{})
	return err
}

func (w *writer) report(ctx context.Context, kind storage.Kind, item Item, o object, r metav1.OwnerReference) {
	key := item.key()
	err := events.Record(ctx, w.local.Cluster(key.Cluster.Path()), events.Event{
		About: corev1.ObjectReference{
			APIVersion: kind.Resource.GroupVersion().String(), Kind: kind.Kind,
			Namespace: key.Namespace, Name: key.Name, UID: o.uid,
		},
		Component: component, Type: corev1.EventTypeWarning, Reason: reasonInvalidOwner,
		Message: fmt.Sprintf("ownerRef [%s/%s, namespace: %s, name: %s, uid: %s] does not exist in namespace %q",
			r.APIVersion, r.Kind, key.Namespace, r.Name, r.UID, key.Namespace),
	}, r.UID, r.APIVersion, r.Kind, r.Name, time.Now().Truncate(eventInterval).Unix())
	if err != nil {
		klog.FromContext(ctx).V(2).Info("Failed to record an Event for an invalid owner reference", "object", item, "err", err)
	}
}

// errBusy requeues an object until other objects of slow logical clusters have been processed.
var errBusy = errors.New("too many deletions wait for webhooks")

const (
	// workers is the number of objects that are examined concurrently.
	workers = 16
	// deleteTimeout limits a deletion, including webhooks.
	deleteTimeout = 10 * time.Second
	// slow is the minimum duration of a deletion whose logical cluster is considered slow.
	slow = time.Second
	// slowWorkers limits the workers for all slow logical clusters.
	slowWorkers = workers / 4
	// slowFor is the time for which a logical cluster is considered slow after a slow deletion.
	slowFor = time.Minute
)

// lanes prevents logical clusters with slow webhooks and policies from using all workers.
type lanes struct {
	slow  *cache.Expiring // the slow logical clusters
	taken chan struct{}   // has an element for each worker that they use
}

func newLanes() lanes { return lanes{cache.NewExpiring(), make(chan struct{}, slowWorkers)} }

// acquire begins a deletion, which done ends. It returns errBusy if slow logical clusters use all of their workers.
func (l *lanes) acquire(cluster logicalcluster.Name) (done func(error), err error) {
	_, isSlow := l.slow.Get(cluster)
	if isSlow {
		select {
		case l.taken <- struct{}{}:
		default:
			return nil, errBusy
		}
	}
	began := time.Now()
	return func(err error) {
		if isSlow {
			<-l.taken
		}
		if time.Since(began) >= slow || apierrors.IsTimeout(err) {
			l.slow.Set(cluster, nil, slowFor)
		}
	}, nil
}
