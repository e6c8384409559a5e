package connections

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apiserver/pkg/authentication/user"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"

	"github.com/shardplane/shardplane/pkg/serving/ledger"
	"github.com/shardplane/shardplane/test/bubble"
)

const testTimeout = time.Minute

// pipes is a listener for pipes.
type pipes struct{ accepted chan net.Conn }

func (p pipes) Accept() (net.Conn, error) {
	c, ok := <-p.accepted
	if !ok {
		return nil, errors.New("closed")
	}
	return c, nil
}
func (p pipes) Close() error   { return nil }
func (p pipes) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 6443} }

// from is a connection from an address.
type from struct {
	net.Conn
	addr string
}

func (f from) RemoteAddr() net.Addr {
	addr, err := net.ResolveTCPAddr("tcp", f.addr)
	if err != nil {
		panic(err)
	}
	return addr
}

// connect returns the client side of an accepted connection.
func connect(t *testing.T, l *Listener, p pipes, addr string) (client, server net.Conn) {
	t.Helper()
	client, accepted := net.Pipe()
	go func() { p.accepted <- from{accepted, addr} }()
	server, err := l.Accept()
	require.NoError(t, err)
	return client, server
}

func isOpen(client net.Conn) bool {
	_ = client.SetReadDeadline(time.Unix(1, 0))
	_, err := client.Read(make([]byte, 1))
	return !errors.Is(err, io.EOF)
}

// TestAnonymous checks that the oldest connection of the address with most connections is closed.
func TestAnonymous(t *testing.T) {
	t.Parallel()
	p := pipes{make(chan net.Conn)}
	l := NewListener(p, ledger.Limits{ledger.AnonymousConnections: 4}, nil)
	quiet, _ := connect(t, l, p, "[2001:db8::1]:1")
	first, _ := connect(t, l, p, "192.0.2.1:1")
	second, _ := connect(t, l, p, "192.0.2.1:2")
	third, server := connect(t, l, p, "192.0.2.1:3")
	require.True(t, isOpen(first))

	newcomer, _ := connect(t, l, p, "192.0.2.2:1")
	require.False(t, isOpen(first), "the oldest connection of the address with most connections must be closed")
	for _, remaining := range []net.Conn{quiet, second, third, newcomer} {
		require.True(t, isOpen(remaining))
	}

	// The oldest of several addresses with the same number. Addresses of an IPv6 network count together.
	require.NoError(t, server.Close())
	sameNetwork, _ := connect(t, l, p, "[2001:db8::2]:1")
	require.True(t, isOpen(second))
	last, _ := connect(t, l, p, "192.0.2.3:1")
	require.False(t, isOpen(quiet))
	for _, remaining := range []net.Conn{sameNetwork, last, newcomer, second} {
		require.True(t, isOpen(remaining))
	}
	require.Len(t, l.conns, 4)

	l.CloseAll()
	require.False(t, isOpen(last))
	require.Empty(t, l.conns)
	require.Empty(t, l.anonymous)
	require.Zero(t, l.waiting)
}

// server serves on a listener with limits. The header "User" authenticates.
func server(t *testing.T, limits ledger.Limits) (*httptest.Server, *Listener) {
	t.Helper()
	handler := WithOwner(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}),
		func(r *http.Request) bool { return r.Header.Get("Forwarded") != "" },
		func(w http.ResponseWriter, _ *http.Request, why string) {
			http.Error(w, why, http.StatusTooManyRequests)
		})
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		subject := &user.DefaultInfo{Name: r.Header.Get("User")}
		if group := r.Header.Get("Group"); group != "" {
			subject.Groups = []string{group}
		}
		handler.ServeHTTP(w, r.WithContext(apirequest.WithUser(r.Context(), subject)))
	}))
	l := NewListener(s.Listener, limits, nil)
	s.Listener, s.EnableHTTP2 = l, true
	s.StartTLS()
	t.Cleanup(s.Close)
	return s, l
}

func client(s *httptest.Server, http2 bool) *http.Client {
	protocols := &http.Protocols{}
	protocols.SetHTTP1(!http2)
	protocols.SetHTTP2(http2)
	return &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: s.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs}, Protocols: protocols}} //nolint:forcetypeassert // it is that of httptest
}

func send(t *testing.T, s *httptest.Server, c *http.Client, headers ...string) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL, http.NoBody)
	require.NoError(t, err)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	response, err := c.Do(r)
	require.NoError(t, err)
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return response.StatusCode, string(body)
}

// TestUser checks that the connections of a user are limited, regardless of other users.
func TestUser(t *testing.T) {
	t.Parallel()
	for name, http2 := range map[string]bool{"HTTP/1.1": false, "HTTP/2": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, l := server(t, ledger.Limits{ledger.ConnectionsPerUser: 1})
			count := func() (conns, waiting int) {
				l.mu.Lock()
				defer l.mu.Unlock()
				return len(l.conns), l.waiting
			}
			served := func(c *http.Client, headers ...string) {
				t.Helper()
				code, body := send(t, s, c, headers...)
				require.Equal(t, http.StatusOK, code, body)
			}
			one, other := client(s, http2), client(s, http2)
			served(one, "User", user.Anonymous)
			_, waiting := count()
			require.Equal(t, 1, waiting)
			served(one, "User", "a")
			served(one, "User", "a")
			code, body := send(t, s, other, "User", "a")
			require.Equal(t, http.StatusTooManyRequests, code)
			require.Contains(t, body, "--limit connections-per-user=1")
			require.Eventually(t, func() bool { conns, _ := count(); return conns == 1 }, testTimeout, time.Millisecond, "the rejected connection must be closed")
			served(other, "User", "b")
			served(other, "User", "a")
			for range 2 {
				served(client(s, http2), "User", user.APIServerUser)
				served(client(s, http2), "User", "c", "Group", user.SystemPrivilegedGroup)
				served(client(s, http2), "User", "d", "Forwarded", "yes")
			}
			conns, waiting := count()
			require.Equal(t, 8, conns)
			require.Zero(t, waiting)

			one.CloseIdleConnections()
			require.Eventually(t, func() bool { conns, _ := count(); return conns == 7 }, testTimeout, time.Millisecond)
			served(client(s, http2), "User", "a")
			l.CloseAll()
			require.Zero(t, l.users.Held())
		})
	}
}

// TestHandshakesHaveADeadline checks that upstream's server closes idle connections before the handshake.
func TestHandshakesHaveADeadline(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p := pipes{make(chan net.Conn)}
		l := NewListener(p, ledger.Limits{}, nil)
		stop := make(chan struct{})
		_, _, err := (&genericapiserver.SecureServingInfo{Listener: l}).Serve(http.NotFoundHandler(), time.Second, stop)
		require.NoError(t, err)
		silent, accepted := net.Pipe()
		p.accepted <- from{accepted, "192.0.2.1:1"}
		began := time.Now()
		_, err = silent.Read(make([]byte, 1))
		require.ErrorIs(t, err, io.EOF)
		require.Less(t, time.Since(began), time.Minute)
		close(stop)
		close(p.accepted)
		bubble.Wait()
	})
}
