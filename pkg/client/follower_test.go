package client

import (
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/shardplane/shardplane/test/background"
	"github.com/shardplane/shardplane/test/bubble"
)

type mirror struct {
	has  map[Key]string
	seen map[Key]bool
}

func (m *mirror) Begin() { m.seen = map[Key]bool{} }

func (m *mirror) End() {
	for key := range m.has {
		if !m.seen[key] {
			delete(m.has, key)
		}
	}
	m.seen = nil
}

func (m *mirror) Put(obj *corev1.ConfigMap) {
	m.has[KeyOf(obj)] = contentOf(obj)
	if m.seen != nil {
		m.seen[KeyOf(obj)] = true
	}
}

func (m *mirror) Delete(last *corev1.ConfigMap) { delete(m.has, KeyOf(last)) }

func (m *mirror) follow(t *testing.T, server *scripted, from string, f func(*Follower[*corev1.ConfigMap])) {
	t.Helper()
	follower := &Follower[*corev1.ConfigMap]{newConnection("test", listerWatcher{list: server.list, watch: server.watch}), m}
	if from != "" {
		follower.Resume(from)
	}
	defer background.Run(t.Context(), t, follower.Run)()
	f(follower)
}

// TestFollower: a sink receives all changes across restarts and failures, and nothing is listed again unnecessarily.
func TestFollower(t *testing.T) {
	for seed := range uint64(30) {
		bubble.Test(t, func(t *testing.T) {
			r := &random{rand: rand.New(rand.NewPCG(seed, 2))}
			server, m, from := newScripted(), &mirror{has: map[Key]string{}}, ""
			write := func() {
				for range r.IntN(10) {
					if key := scriptedKey(r.IntN(30)); r.IntN(3) == 0 {
						server.remove(key)
					} else {
						server.put(key, "content")
					}
				}
			}
			for range 5 {
				write()
				before, compacted := server.count(&server.initial)+server.count(&server.lists), false
				if r.IntN(3) == 0 {
					compacted = from != strconv.FormatInt(server.revision, 10)
					server.compact()
				}
				m.follow(t, server, from, func(f *Follower[*corev1.ConfigMap]) {
					resumes := from != "" && !compacted
					if resumes {
						require.True(t, f.HasSynced())
					}
					pass(10 * time.Second)
					require.Equal(t, !resumes, f.Current(), "current before the bookmark only if not resumed")
					server.bookmark()
					bubble.Wait()
					require.True(t, f.Current())
					require.Equal(t, server.state(), m.has)
					if resumes {
						require.Equal(t, before, server.count(&server.initial)+server.count(&server.lists), "the state was read again")
					}
					write()
					server.bookmark()
					bubble.Wait()
					require.Equal(t, server.state(), m.has)
					from = f.ResourceVersion()
				})
			}
		})
	}
}

func (s *scripted) bookmark() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range s.watches {
		w.send(watch.Event{Type: watch.Bookmark, Object: &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{ResourceVersion: strconv.FormatInt(s.revision, 10)}}})
	}
}
