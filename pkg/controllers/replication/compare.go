package replication

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/controllers/replication/digest"
)

// comparePage is how many objects one request of a comparison asks for.
const comparePage = 500

// differenceTimeout is how long a difference has to last to be one, and differenceTries how
// often one is looked at again that changes all the time.
const (
	differenceTimeout = time.Second
	differenceTries   = 3
)

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
	// Fields are the fields that a different replica has other than its object, or that one
	// of the two has not.
	Fields []string
}

// String describes the difference in a few words.
func (d Difference) String() string {
	return fmt.Sprintf("%s %s: the replica is %s", d.Resource, d.Key, d.Problem)
}

// Compare reads all selected objects of the shard and all of its replicas, and trusts nothing
// that is known of them. It reports the differences, ordered by resource and key. What
// looks different is looked at twice, a second apart, so that a healthy
// replication under load has none to report.
func Compare(ctx context.Context, config Config) ([]Difference, error) {
	config, err := config.complete()
	if err != nil {
		return nil, err
	}
	var found []Difference
	var errs []error
	for _, resource := range config.resources() {
		differences, err := CompareResource(ctx, config, resource, nil)
		errs = append(errs, err)
		found = append(found, differences...)
	}
	return found, errors.Join(errs...)
}

// resources returns those of the table, in a fixed order.
func (c Config) resources() []schema.GroupResource {
	lines, _ := c.Table.snapshot()
	return slices.SortedFunc(maps.Keys(lines), func(a, b schema.GroupResource) int { return cmp.Compare(a.String(), b.String()) })
}

// CompareResource is Compare for one resource of the table. told, unless it is nil, is called
// with the number of objects and replicas that were read, again and again.
func CompareResource(ctx context.Context, config Config, resource schema.GroupResource, told func(objects, replicas int)) ([]Difference, error) {
	config, err := config.complete()
	if err != nil {
		return nil, err
	}
	lines, _ := config.Table.snapshot()
	l, ok := lines[resource]
	if !ok {
		return nil, fmt.Errorf("%s is not replicated", resource)
	}
	if told == nil {
		told = func(int, int) {}
	}
	suspects, err := compareResource(ctx, config, newMirror(config, l).resource, told)
	if err != nil {
		err = fmt.Errorf("cannot compare %s: %w", resource, err)
	}
	found := make([]Difference, 0, len(suspects))
	for _, s := range suspects {
		found = append(found, Difference{Resource: resource, Key: s.key, Problem: s.problem, Fields: s.fields})
	}
	slices.SortFunc(found, func(a, b Difference) int { return cmp.Compare(a.Key.String(), b.Key.String()) })
	return found, err
}

// compareResource returns what is different of one resource, and has been for
// differenceTimeout.
func compareResource(ctx context.Context, config Config, resource Resource, told func(objects, replicas int)) ([]suspect, error) {
	type listed struct {
		hash    uint64
		version string
	}
	replicas := map[client.Key]listed{}
	hash := func(obj *unstructured.Unstructured) uint64 {
		hash, err := digest.Hash("", canonical(obj))
		if err != nil {
			return 0 // looked at more closely
		}
		return hash
	}
	err := eachObject(ctx, config.replicas().Wildcard(), resource, func(obj *unstructured.Unstructured) {
		replicas[client.KeyOf(obj)] = listed{hash(obj), obj.GetResourceVersion()}
		told(0, len(replicas))
	})
	if err != nil {
		return nil, fmt.Errorf("reading the replicas: %w", err)
	}
	var suspects []suspect
	objects, all := 0, len(replicas)
	err = eachObject(ctx, config.Local.Wildcard(), resource, func(obj *unstructured.Unstructured) {
		key, selected := client.KeyOf(obj), resource.selects(obj)
		if selected {
			objects++
		}
		told(objects, all)
		replica, has := replicas[key]
		if want := hash(resource.desired(obj)); has != selected || has && (want == 0 || want != replica.hash) {
			suspects = append(suspects, suspect{key: key, local: version(obj), replica: replica.version})
		}
		delete(replicas, key)
	})
	if err != nil {
		return nil, fmt.Errorf("reading the shard: %w", err)
	}
	for key, replica := range replicas {
		suspects = append(suspects, suspect{key: key, replica: replica.version})
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
	// problem is set when the difference was confirmed, and fields where it is one.
	problem Problem
	fields  []string
}

// confirm looks at the suspects again after a while. A difference is one where
// nothing has moved on either side: otherwise the replication is at work, and what
// is still different then is looked at once more.
func confirm(ctx context.Context, config Config, resource Resource, suspects []suspect) (found []suspect, err error) {
	for range differenceTries {
		if len(suspects) == 0 {
			break
		}
		timer := time.NewTimer(differenceTimeout)
		defer timer.Stop()
		select {
		case <-ctx.Done():
			return found, context.Cause(ctx)
		case <-timer.C:
		}
		var moved []suspect
		for _, s := range suspects {
			now, err := lookAgain(ctx, config, resource, s.key)
			switch {
			case err != nil:
				return found, err
			case now.problem == "":
			case now.local == s.local && now.replica == s.replica:
				found = append(found, now)
			default:
				moved = append(moved, now)
			}
		}
		suspects = moved
	}
	return found, nil
}

// lookAgain reads both sides of an object, and says what is wrong.
func lookAgain(ctx context.Context, config Config, resource Resource, key client.Key) (suspect, error) {
	local, err := getObject(ctx, config.Local, resource, key)
	if err != nil {
		return suspect{}, err
	}
	replica, err := getObject(ctx, config.replicas(), resource, key)
	if err != nil {
		return suspect{}, err
	}
	now := suspect{key: key, local: version(local), replica: version(replica), problem: problemOf(resource, local, replica)}
	if now.problem == ProblemDifferent {
		now.fields = differing("", canonical(resource.desired(local)), canonical(replica))
	}
	return now, nil
}

// differing returns the paths of the fields that differ, in order. Lists differ as a whole.
func differing(path string, a, b map[string]any) []string {
	names := slices.Collect(maps.Keys(a))
	for name := range b {
		if _, both := a[name]; !both {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	var fields []string
	for _, name := range names {
		one, inOne := a[name].(map[string]any)
		other, inOther := b[name].(map[string]any)
		switch at := path + "." + name; {
		case inOne && inOther:
			fields = append(fields, differing(at, one, other)...)
		case !equality.Semantic.DeepEqual(a[name], b[name]):
			fields = append(fields, strings.TrimPrefix(at, "."))
		}
	}
	return fields
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
