package listwatch

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/test/integration/kit"
)

// tale is what an informer has told of objects.
type tale struct {
	t *testing.T

	mu sync.Mutex
	// of has the versions of each object, in order, and gone where it has left.
	of map[types.UID][]int64
	// known has the last version of each that has neither left nor been deleted.
	known map[types.UID]string
}

const gone = -1

func (s *tale) follow(i *client.Informer[*corev1.ConfigMap]) {
	s.of, s.known = map[types.UID][]int64{}, map[types.UID]string{}
	// note holds that what is told follows what was told before.
	note := func(obj *corev1.ConfigMap, before, after string) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.known[obj.UID] != before {
			s.t.Errorf("%s is told of from version %q, and was told last at %q", obj.Name, before, s.known[obj.UID])
		}
		version, err := strconv.ParseInt(obj.ResourceVersion, 10, 64)
		if err != nil {
			s.t.Error(err)
		}
		if told := s.of[obj.UID]; len(told) > 0 && version <= told[len(told)-1] {
			s.t.Errorf("%s is told of at version %d after %d", obj.Name, version, told[len(told)-1])
		}
		s.of[obj.UID] = append(s.of[obj.UID], version)
		s.known[obj.UID] = after
	}
	i.AddEventHandler(client.Handler[*corev1.ConfigMap]{
		OnAdd:    func(obj *corev1.ConfigMap, _ bool) { note(obj, "", obj.ResourceVersion) },
		OnUpdate: func(old, obj *corev1.ConfigMap) { note(obj, old.ResourceVersion, obj.ResourceVersion) },
		OnDelete: func(last *corev1.ConfigMap, tombstone bool) {
			s.mu.Lock()
			before := s.known[last.UID]
			s.mu.Unlock()
			if note(last, before, ""); before == "" || tombstone {
				s.t.Errorf("the end of %s is told, tombstone %t, and it was told last at %q", last.Name, tombstone, before)
			}
		},
		OnLeave: func(last *corev1.ConfigMap, _ client.Leave) {
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.known[last.UID] != last.ResourceVersion {
				s.t.Errorf("%s leaves at %q, and was told last at %q", last.Name, last.ResourceVersion, s.known[last.UID])
			}
			s.of[last.UID] = append(s.of[last.UID], gone)
			s.known[last.UID] = ""
		},
	})
}

// without returns why a tale is not that of a part of all: between coming and leaving nothing may be
// missing of what the whole has told, and of what stays from the beginning nothing at all.
func (s *tale) without(whole *tale, stays func(types.UID) bool) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	whole.mu.Lock()
	defer whole.mu.Unlock()
	for uid, all := range whole.of {
		if told := s.of[uid]; stays(uid) && !slices.Equal(told, all) {
			return fmt.Sprintf("of %s was told %v, and there was %v", uid, told, all)
		}
	}
	for uid, told := range s.of {
		all, next := whole.of[uid], gone
		for _, version := range told {
			at := slices.Index(all, version)
			switch {
			case version == gone:
				next = gone
				continue
			case at < 0, next != gone && at != next:
				return fmt.Sprintf("of %s was told %v, and there was %v", uid, told, all)
			}
			next = at + 1
		}
	}
	return ""
}

// TestRangesThatMove has two informers pass ranges to each other, and lose the server, while objects
// are written, and holds what they tell against a watch of everything: the versions of an object
// only grow, none comes twice or is missing while it is in a range that is held, and both
// together have in the end what a list of everything has at that version.
func TestRangesThatMove(t *testing.T) {
	t.Parallel()
	e := kit.Shared(t)
	e.WorkspaceOn("root", "moving", "root")
	configMaps := kinds.ConfigMaps.InNamespace(e.ProxyClient.Cluster(kit.Path("root:moving")), "default")
	w := &wire{}
	config := rest.CopyConfig(e.Shard(0))
	config.Dial = w.dial
	broken := kit.NewFactory(t, config)
	follow := func(f *client.Factory, ranges client.RangeSource) (*client.Informer[*corev1.ConfigMap], *tale) {
		i := kinds.ConfigMaps.Informer(f.Wildcard(), client.InformerOptions[*corev1.ConfigMap]{LabelSelector: "moving=yes", Ranges: ranges})
		s := &tale{t: t}
		s.follow(i)
		go func() { _ = i.Run(t.Context()) }()
		e.Eventually("it syncs", i.HasSynced)
		return i, s
	}
	part := func(first, last uint64) client.Ranges { // of sixteen
		ranges, err := client.NewRanges(client.ByUID, client.Range{First: first << 60, Last: last<<60 + 1<<60 - 1})
		require.NoError(t, err)
		return ranges
	}
	lower, upper := client.NewChangingRanges(part(0, 7)), client.NewChangingRanges(part(8, 15))
	all, whole := follow(e.ShardClients["root"], nil)
	low, told := follow(broken, lower)
	high, toldToo := follow(broken, upper)

	writing, stop := context.WithCancel(t.Context())
	var writers sync.WaitGroup
	for n := range 3 {
		writers.Go(func() {
			for i := 0; writing.Err() == nil; i++ {
				obj := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("x-%d-%d", n, i%20), Labels: map[string]string{"moving": "yes"}}, Data: map[string]string{"n": fmt.Sprint(i)}}
				switch i / 20 % 4 {
				case 0:
					_, _ = configMaps.Create(writing, obj, metav1.CreateOptions{})
				case 3:
					_ = configMaps.Delete(writing, obj.Name, metav1.DeleteOptions{})
				default:
					_, _ = configMaps.Update(writing, obj, metav1.UpdateOptions{})
				}
			}
		})
	}
	r := rand.New(rand.NewPCG(1, 15))
	for n := range 40 {
		at := 4 + r.Uint64N(9) // 0 to 3 and 12 to 15 stay
		first, second := part(0, at-1), part(at, 15)
		lower.Set(first)
		upper.Set(second)
		// What comes and is not complete may be read again, without what was in between.
		e.Eventually("they have loaded", func() bool { return low.Holds().Equal(first) && high.Holds().Equal(second) })
		if n%5 == 4 {
			w.set(true) // the next ranges move while they come back
			w.set(false)
		}
	}
	stop()
	writers.Wait()
	e.Eventually("both have all", func() bool {
		list, err := configMaps.List(t.Context(), metav1.ListOptions{LabelSelector: "moving=yes"})
		require.NoError(t, err)
		found := append(low.Lister().List(nil), high.Lister().List(nil)...)
		if all.Lister().Len() != len(list.Items) || len(found) != len(list.Items) {
			return false
		}
		return !slices.ContainsFunc(found, func(obj *corev1.ConfigMap) bool {
			return !slices.ContainsFunc(list.Items, func(o corev1.ConfigMap) bool { return o.UID == obj.UID && o.ResourceVersion == obj.ResourceVersion })
		})
	})
	var why [2]string
	require.Eventually(t, func() bool {
		why = [2]string{
			told.without(whole, func(uid types.UID) bool { return client.HashOf(string(uid))>>60 < 4 }),
			toldToo.without(whole, func(uid types.UID) bool { return client.HashOf(string(uid))>>60 >= 12 }),
		}
		return why == [2]string{}
	}, kit.Timeout, 10*time.Millisecond, "%v", &why)
	require.NotEmpty(t, whole.of)
	t.Logf("%d objects", len(whole.of))
}

// wire is a network that can be cut.
type wire struct {
	mu          sync.Mutex
	cut         bool
	connections []net.Conn
}

func (w *wire) dial(ctx context.Context, network, address string) (net.Conn, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cut {
		return nil, errors.New("the wire is cut")
	}
	c, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err == nil {
		w.connections = append(w.connections, c)
	}
	return c, err
}

func (w *wire) set(cut bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cut = cut; cut {
		for _, c := range w.connections {
			_ = c.Close()
		}
		w.connections = nil
	}
}
