package verify

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/replication"
	"github.com/shardplane/shardplane/pkg/replication/digest"
)

// differenceTimeout is how long a difference must last to be reported. differenceTries limits the checks of one that
// keeps changing.
const (
	differenceTimeout = time.Second
	differenceTries   = 3
)

// Difference is a replica that differs from its object.
type Difference struct {
	// Resource is the resource of the object.
	Resource schema.GroupResource
	// Key is the key of the object on its shard.
	Key client.Key
	// Problem is the type of difference.
	Problem replication.Problem
	// Fields are the paths of different fields, or of fields that only one of the two has.
	Fields []string
}

// Config configures Compare.
type Config struct {
	// Shard is the name of the shard.
	Shard string
	// Local and Cache are clients of the shard and of the cache server for a system:masters user.
	Local, Cache *client.Factory
}

func (c Config) replicas() *client.Factory { return c.Cache.Shard(c.Shard) }

// Compare reads all selected objects of a resource and all of their replicas, and returns the differences ordered by
// key. Differences are checked again after a second, so that running replication causes none. progress is called
// repeatedly with the number of objects and replicas that were read.
func Compare(ctx context.Context, config Config, resource replication.Resource, progress func(objects, replicas int)) ([]Difference, error) {
	found, err := compare(ctx, config, resource.Of(config.Shard, false), progress)
	if err != nil {
		err = fmt.Errorf("cannot compare %s: %w", resource.GroupResource(), err)
	}
	slices.SortFunc(found, func(a, b Difference) int { return cmp.Compare(a.Key.String(), b.Key.String()) })
	return found, err
}

func compare(ctx context.Context, config Config, resource replication.Resource, progress func(objects, replicas int)) ([]Difference, error) {
	type listed struct {
		hash    uint64
		version string
	}
	replicas := map[client.Key]listed{}
	hash := func(obj *unstructured.Unstructured) uint64 {
		hash, err := digest.Hash("", replication.Canonical(obj))
		if err != nil {
			return 0 // compared in detail later
		}
		return hash
	}
	err := replication.EachObject(ctx, config.replicas().Wildcard(), resource, func(obj *unstructured.Unstructured) {
		replicas[client.KeyOf(obj)] = listed{hash(obj), obj.GetResourceVersion()}
		progress(0, len(replicas))
	})
	if err != nil {
		return nil, fmt.Errorf("reading the replicas: %w", err)
	}
	var candidates []candidate
	objects, all := 0, len(replicas)
	err = replication.EachObject(ctx, config.Local.Wildcard(), resource, func(obj *unstructured.Unstructured) {
		key, selected := client.KeyOf(obj), resource.Selects(obj)
		if selected {
			objects++
		}
		progress(objects, all)
		replica, has := replicas[key]
		if want := hash(resource.Desired(obj)); has != selected || has && (want == 0 || want != replica.hash) {
			candidates = append(candidates, candidate{Difference{Key: key}, version(obj), replica.version})
		}
		delete(replicas, key)
	})
	if err != nil {
		return nil, fmt.Errorf("reading the shard: %w", err)
	}
	for key, replica := range replicas {
		candidates = append(candidates, candidate{Difference{Key: key}, "", replica.version})
	}
	return confirm(ctx, config, resource, candidates)
}

// candidate is a possible difference. It may be caused by reading the two sides one after the other.
type candidate struct {
	Difference

	// local and replica are the listed resource versions, empty without an object.
	local, replica string
}

// confirm checks the candidates again after a while. A difference is confirmed if neither side has changed. Otherwise,
// the replication is at work, and the difference is checked once more.
func confirm(ctx context.Context, config Config, resource replication.Resource, candidates []candidate) (found []Difference, err error) {
	for range differenceTries {
		if len(candidates) == 0 {
			break
		}
		select {
		case <-ctx.Done():
			return found, context.Cause(ctx)
		case <-time.After(differenceTimeout):
		}
		var changed []candidate
		for _, c := range candidates {
			now, err := recheck(ctx, config, resource, c.Key)
			switch {
			case err != nil:
				return found, err
			case now.Problem == "":
			case now.local == c.local && now.replica == c.replica:
				found = append(found, now.Difference)
			default:
				changed = append(changed, now)
			}
		}
		candidates = changed
	}
	return found, nil
}

func recheck(ctx context.Context, config Config, resource replication.Resource, key client.Key) (candidate, error) {
	local, err := replication.GetObject(ctx, config.Local, resource, key)
	if err != nil {
		return candidate{}, err
	}
	replica, err := replication.GetObject(ctx, config.replicas(), resource, key)
	if err != nil {
		return candidate{}, err
	}
	todo, _ := replication.Decide(resource, local, replica)
	difference := Difference{Resource: resource.GroupResource(), Key: key, Problem: todo.Problem()}
	now := candidate{difference, version(local), version(replica)}
	if now.Problem == replication.ProblemDifferent {
		now.Fields = differing("", replication.Canonical(resource.Desired(local)), replication.Canonical(replica))
	}
	return now, nil
}

// differing returns the paths of the fields that differ, in order. Lists are compared as a whole.
func differing(path string, a, b map[string]any) []string {
	var fields []string
	for _, name := range sets.List(sets.KeySet(a).Union(sets.KeySet(b))) {
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

func version(obj *unstructured.Unstructured) string {
	if obj == nil {
		return ""
	}
	return obj.GetResourceVersion()
}
