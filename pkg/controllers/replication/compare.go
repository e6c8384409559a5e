package replication

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/pkg/client"
)

// comparePage is how many objects one request of a comparison asks for.
const comparePage = 500

// differenceTimeout is how long a difference has to last to be one.
const differenceTimeout = time.Second

// Problem says in which way a replica is not as it should be.
type Problem string

// The ways in which a replica can be wrong.
const (
	// ProblemMissing is an object without a replica.
	ProblemMissing Problem = "missing"
	// ProblemLeftOver is a replica whose object is gone or not selected.
	ProblemLeftOver Problem = "left over"
	// ProblemDifferent is a replica with another content than its object.
	ProblemDifferent Problem = "different"
)

// Difference is one replica that is not as it should be.
type Difference struct {
	// Resource is the kind of object.
	Resource schema.GroupResource
	// Key is the object's key in its shard.
	Key client.Key
	// Problem says what is wrong.
	Problem Problem
}

// String describes the difference in a few words.
func (d Difference) String() string {
	return fmt.Sprintf("%s %s: the replica is %s", d.Resource, d.Key, d.Problem)
}

// Compare reads all selected objects of the shard and all of its replicas, past
// every informer, and reports the differences, ordered by resource and key. What
// looks different is looked at twice, a second apart, so that a healthy
// replication under load has none to report.
func Compare(ctx context.Context, config Config) ([]Difference, error) {
	config, err := config.complete()
	if err != nil {
		return nil, err
	}
	var found []Difference
	var errs []error
	lines, _ := config.Table.snapshot()
	for _, l := range lines {
		resource := newMirror(config, l).resource
		suspects, err := compareResource(ctx, config, resource)
		if err != nil {
			errs = append(errs, fmt.Errorf("cannot compare %s: %w", resource.GroupResource(), err))
		}
		for _, s := range suspects {
			found = append(found, Difference{Resource: resource.GroupResource(), Key: s.key, Problem: s.problem})
		}
	}
	slices.SortFunc(found, func(a, b Difference) int {
		return cmp.Or(cmp.Compare(a.Resource.String(), b.Resource.String()), cmp.Compare(a.Key.String(), b.Key.String()))
	})
	return found, errors.Join(errs...)
}

// compareResource returns what is different of one resource, and has been for
// differenceTimeout.
func compareResource(ctx context.Context, config Config, resource Resource) ([]suspect, error) {
	replicas := map[client.Key]*unstructured.Unstructured{}
	err := eachObject(ctx, config.replicas().Wildcard(), resource, func(obj *unstructured.Unstructured) {
		replicas[client.KeyOf(obj)] = obj
	})
	if err != nil {
		return nil, fmt.Errorf("reading the replicas: %w", err)
	}
	var suspects []suspect
	err = eachObject(ctx, config.Local.Wildcard(), resource, func(obj *unstructured.Unstructured) {
		key := client.KeyOf(obj)
		if todo, _ := decide(resource, obj, replicas[key]); todo != actionNone {
			suspects = append(suspects, suspect{key: key, local: version(obj), replica: version(replicas[key])})
		}
		delete(replicas, key)
	})
	if err != nil {
		return nil, fmt.Errorf("reading the shard: %w", err)
	}
	for key, replica := range replicas {
		suspects = append(suspects, suspect{key: key, replica: version(replica)})
	}
	return confirm(ctx, config, resource, suspects)
}

// suspect is a difference that the lists show: which may be one that comes from
// reading the two sides one after the other.
type suspect struct {
	key client.Key
	// local and replica are the resource versions that the lists had; empty
	// where there was no object.
	local, replica string
	// problem is set when the difference was confirmed.
	problem Problem
}

// confirm looks at the suspects again after a while. A difference is one where
// nothing has moved on either side: otherwise the replication is at work.
func confirm(ctx context.Context, config Config, resource Resource, suspects []suspect) ([]suspect, error) {
	if len(suspects) == 0 {
		return nil, nil
	}
	timer := time.NewTimer(differenceTimeout)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-timer.C:
	}
	var found []suspect
	for _, s := range suspects {
		var err error
		if s.problem, err = lookAgain(ctx, config, resource, s); err != nil {
			return found, err
		}
		if s.problem != "" {
			found = append(found, s)
		}
	}
	return found, nil
}

// lookAgain reads both sides of a suspect and returns what is still wrong;
// nothing where either side has changed since.
func lookAgain(ctx context.Context, config Config, resource Resource, s suspect) (Problem, error) {
	local, err := getObject(ctx, config.Local, resource, s.key)
	if err != nil {
		return "", err
	}
	replica, err := getObject(ctx, config.replicas(), resource, s.key)
	if err != nil {
		return "", err
	}
	if version(local) != s.local || version(replica) != s.replica {
		return "", nil
	}
	return problemOf(resource, local, replica), nil
}

func problemOf(resource Resource, local, replica *unstructured.Unstructured) Problem {
	switch todo, _ := decide(resource, local, replica); {
	case todo == actionNone:
		return ""
	case replica == nil:
		return ProblemMissing
	case local == nil || !resource.selects(local):
		return ProblemLeftOver
	default:
		return ProblemDifferent
	}
}

func version(obj *unstructured.Unstructured) string {
	if obj == nil {
		return ""
	}
	return obj.GetResourceVersion()
}

// eachObject calls visit for all objects of a resource, read in pages.
func eachObject(ctx context.Context, scope client.Scope, resource Resource, visit func(*unstructured.Unstructured)) error {
	clients, err := scope.Dynamic()
	if err != nil {
		return err
	}
	opts := metav1.ListOptions{Limit: comparePage}
	for {
		page, err := clients.Resource(resource.GroupVersionResource).List(ctx, opts)
		if err != nil {
			return err
		}
		for i := range page.Items {
			visit(&page.Items[i])
		}
		if opts.Continue = page.GetContinue(); opts.Continue == "" {
			return nil
		}
	}
}

// getObject returns an object, or nil where there is none.
func getObject(ctx context.Context, factory *client.Factory, resource Resource, key client.Key) (*unstructured.Unstructured, error) {
	clients, err := factory.Cluster(key.Cluster.Path()).Dynamic()
	if err != nil {
		return nil, err
	}
	obj, err := clients.Resource(resource.GroupVersionResource).Namespace(key.Namespace).Get(ctx, key.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return obj, err
}
