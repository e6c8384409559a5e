package client

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/shardplane/shardplane/test/background"
	"github.com/shardplane/shardplane/test/bubble"
)

type follower struct {
	*Informer[*corev1.ConfigMap]
	notified map[Key]string
}

func recordingTo(t *testing.T, notified map[Key]string) Handler[*corev1.ConfigMap] {
	t.Helper()
	return Handler[*corev1.ConfigMap]{
		OnAdd: func(obj *corev1.ConfigMap, _ bool) {
			if _, twice := notified[KeyOf(obj)]; twice {
				t.Errorf("%s was added twice", KeyOf(obj))
			}
			notified[KeyOf(obj)] = contentOf(obj)
		},
		OnUpdate: func(old, obj *corev1.ConfigMap) {
			if notified[KeyOf(obj)] != contentOf(old) {
				t.Errorf("%s was notified as %s, but is updated from %s", KeyOf(obj), notified[KeyOf(obj)], contentOf(old))
			}
			notified[KeyOf(obj)] = contentOf(obj)
		},
		OnDelete: func(last *corev1.ConfigMap, _ bool) {
			if _, ok := notified[KeyOf(last)]; !ok {
				t.Errorf("%s was deleted, but was never added", KeyOf(last))
			}
			delete(notified, KeyOf(last))
		},
	}
}

func (s *scripted) neverDenied(t *testing.T, h Handler[*corev1.ConfigMap]) Handler[*corev1.ConfigMap] {
	t.Helper()
	onUpdate, onDelete := h.OnUpdate, h.OnDelete
	h.OnUpdate = func(old, obj *corev1.ConfigMap) {
		if contentOf(old) == contentOf(obj) {
			t.Errorf("%s was notified as %s twice", KeyOf(obj), contentOf(obj))
		}
		onUpdate(old, obj)
	}
	h.OnDelete = func(last *corev1.ConfigMap, tombstone bool) {
		s.mu.Lock()
		if now := s.objects[KeyOf(last)]; now != nil && now.UID == last.UID {
			t.Errorf("%s was notified as deleted, but the server has %s", KeyOf(last), contentOf(now))
		}
		s.mu.Unlock()
		onDelete(last, tombstone)
	}
	return h
}

func inBubble(t *testing.T, server *scripted, options InformerOptions[*corev1.ConfigMap], f func(t *testing.T, i *follower)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		i := &follower{server.informer(options), map[Key]string{}}
		i.AddEventHandler(server.neverDenied(t, recordingTo(t, i.notified)))
		defer background.Run(t.Context(), t, i.Run)()
		f(t, i)
	})
}

func pass(d time.Duration) {
	<-time.After(d)
	bubble.Wait()
}

func (i *follower) agrees(t *testing.T, server *scripted) {
	t.Helper()
	bubble.Wait()
	require.Equal(t, server.state(), contentsOf(i.Lister().List(nil)))
	require.Equal(t, server.state(), i.notified)
	require.NoError(t, i.LastError())
	require.True(t, i.HasSynced())
}

// TestModel: an informer follows a server that fails at random. Then it has the state of the server, and has not
// listed more than necessary.
func TestModel(t *testing.T) {
	for seed := range uint64(60) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := &random{rand: rand.New(rand.NewPCG(seed, 1))}
			server := newScripted()
			write := func() {
				key := scriptedKey(r.IntN(30))
				if r.IntN(3) == 0 {
					server.remove(key)
					return
				}
				server.put(key, fmt.Sprint("content", r.IntN(100)))
			}
			for range 40 {
				write()
			}
			server.next, server.between = randomly(r, 2), write
			inBubble(t, server, InformerOptions[*corev1.ConfigMap]{DisableWatchList: seed%4 == 0}, func(t *testing.T, i *follower) {
				for range 100 {
					bubble.Wait()
					switch event := r.IntN(8); event {
					case 0, 1, 2:
						server.disturb(event)
					case 3:
						pass(time.Duration(r.IntN(5000)) * time.Millisecond)
					default:
						write()
					}
				}
				server.calm()
				pass(time.Minute) // longer than any timeout
				write()
				i.agrees(t, server)
			})
		})
	}
}

func (s *scripted) script(script ...fault) {
	s.next = func() fault {
		if len(script) == 0 {
			return ""
		}
		next := script[0]
		script = script[1:]
		return next
	}
}

func filled(n int) *scripted {
	server := newScripted()
	for i := range n {
		server.put(scriptedKey(i), "first")
	}
	return server
}

// TestExpiredPages: objects of the pages before an expired page are dropped.
func TestExpiredPages(t *testing.T) {
	server := filled(12)
	between := 0
	server.between = func() {
		// After the first page of the relist, which contains scriptedKey(0).
		if between++; between == 3 {
			server.remove(scriptedKey(0))
		}
	}
	inBubble(t, server, InformerOptions[*corev1.ConfigMap]{DisableWatchList: true}, func(t *testing.T, i *follower) {
		bubble.Wait()
		i.agrees(t, server)
		server.script(expired, "", expired)
		server.end(nil)
		pass(10 * time.Second)
		require.Equal(t, 3, between, "the relist must have reached a second page")
		i.agrees(t, server)
	})
}

// TestSlowStart: the state is listed if initial events are slow or end early. The next initial state is requested on
// the watch again.
func TestSlowStart(t *testing.T) {
	for _, f := range []fault{slow, cut, refused} {
		server := filled(12)
		server.script(f)
		inBubble(t, server, InformerOptions[*corev1.ConfigMap]{}, func(t *testing.T, i *follower) {
			pass(time.Minute)
			i.agrees(t, server)
			require.Equal(t, 1, server.count(&server.lists), f)
			before := server.count(&server.initial)
			server.compact()
			server.put(scriptedKey(20), "late")
			server.compact()
			server.end(apierrors.NewResourceExpired("too old"))
			pass(time.Minute)
			i.agrees(t, server)
			require.Equal(t, 1, server.count(&server.lists), "%s: the fallback to lists must not be permanent", f)
			require.Equal(t, before+1, server.count(&server.initial))
		})
	}
}

// TestLaggingReplica: an informer waits for a server that does not have its version yet. It lists again only if the
// data were restored from a backup.
func TestLaggingReplica(t *testing.T) {
	server := filled(12)
	inBubble(t, server, InformerOptions[*corev1.ConfigMap]{}, func(t *testing.T, i *follower) {
		bubble.Wait()
		restore := server.backup()
		server.put(scriptedKey(1), "second")
		server.put(scriptedKey(13), "second")
		server.remove(scriptedKey(2))
		i.agrees(t, server)

		server.script(lagging, "", lagging, unavailable, lagging)
		server.end(nil)
		pass(time.Minute)
		server.put(scriptedKey(14), "third")
		i.agrees(t, server)
		require.Equal(t, 1, server.count(&server.initial), "the initial state was requested again")

		restore()
		pass(time.Minute)
		require.Equal(t, 2, server.count(&server.initial))
		i.agrees(t, server)
	})
}

// TestOtherContentOfOneVersion: handlers are notified of different content with the same version, e.g. after a
// restore.
func TestOtherContentOfOneVersion(t *testing.T) {
	server := filled(3)
	inBubble(t, server, InformerOptions[*corev1.ConfigMap]{}, func(t *testing.T, i *follower) {
		bubble.Wait()
		restore := server.backup()
		server.put(scriptedKey(1), "one way")
		i.agrees(t, server)
		restore()
		server.put(scriptedKey(1), "another way")
		server.compact()
		server.put(scriptedKey(2), "third")
		server.compact()
		pass(time.Minute)
		i.agrees(t, server)
	})
}

// TestRetryAfter: an informer retries after the requested time, at its version.
func TestRetryAfter(t *testing.T) {
	server := filled(3)
	inBubble(t, server, InformerOptions[*corev1.ConfigMap]{}, func(t *testing.T, i *follower) {
		bubble.Wait()
		server.script(tooMany)
		server.end(nil)
		pass(time.Second)
		require.Equal(t, 0, server.count(&server.resumed))
		require.True(t, apierrors.IsTooManyRequests(i.LastError()))
		pass(2 * time.Second)
		require.Equal(t, 1, server.count(&server.resumed))
		require.Equal(t, 1, server.count(&server.initial))
		i.agrees(t, server)
	})
}
