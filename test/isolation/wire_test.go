package isolation

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

const (
	// largeBody is more than servers read of the body of a rejected request, and smallBody less.
	largeBody, smallBody = 1 << 20, 1 << 10
	// sentBody is the part of a large body that is sent by HTTP/2, within the initial window.
	sentBody = 1 << 16
)

// testWire checks that frames, the accepted length of the body, and the reuse of connections are
// the same for existing and missing logical clusters.
func (w *world) testWire(t *testing.T) {
	for attacker, p := range w.attackers {
		if !p.insider || !p.attacks(frontProxy) {
			continue
		}
		for _, path := range []string{"/clusters/$B$" + secretList, "/clusters/$BPATH$" + secretList} {
			for name, exchange := range map[string]func(path string) string{
				"HTTP/2":                 func(path string) string { return w.frames(t, attacker, path) },
				"HTTP/1.1, a large body": func(path string) string { return w.connection(t, attacker, path, largeBody) },
				"HTTP/1.1, a small body": func(path string) string { return w.connection(t, attacker, path, smallBody) },
			} {
				existing := strings.ReplaceAll(exchange(w.expand(path, false)), w.bravo.name, w.absent.name)
				missing := exchange(w.expand(path, true))
				require.Contains(t, missing, "403")
				require.Equal(t, missing, strings.ReplaceAll(existing, w.bravo.path, w.absent.path), "%s, %s, %s", p.name, path, name)
			}
		}
	}
}

// connection announces a body by HTTP/1.1, and sends it if it is small. It returns the response and
// whether the connection is reused.
func (w *world) connection(t *testing.T, attacker int, path string, size int) string {
	t.Helper()
	conn, err := w.connect(t.Context(), attacker, atProxy, "http/1.1")
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	body := ""
	if size == smallBody {
		body = strings.Repeat("x", size)
	}
	request := fmt.Sprintf("POST %s HTTP/1.1\r\nHost: h\r\n%sContent-Length: %d\r\n\r\n%s", path, w.authorization(attacker), size, body)
	_, err = io.WriteString(conn, request)
	require.NoError(t, err)
	reader := bufio.NewReader(conn)
	text := w.response(t, reader)
	if size == smallBody {
		_, err = io.WriteString(conn, request)
		require.NoError(t, err)
		return text + w.response(t, reader)
	}
	_, err = reader.ReadByte()
	return text + fmt.Sprint(err)
}

func (w *world) authorization(attacker int) string {
	if token := w.attackers[attacker].bearer(); token != "" {
		return "Authorization: Bearer " + token + "\r\n"
	}
	return ""
}

// response returns a response without volatile headers.
func (w *world) response(t *testing.T, from *bufio.Reader) string {
	t.Helper()
	res, err := http.ReadResponse(from, nil)
	require.NoError(t, err)
	body, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	for _, name := range volatileHeaders {
		res.Header.Del(name)
	}
	return fmt.Sprintln(res.Status, res.Close, res.Header, string(body))
}

// frames announces a large body by HTTP/2 and sends a part of it. It returns the frames before and
// after the response.
func (w *world) frames(t *testing.T, attacker int, path string) string {
	t.Helper()
	conn, err := w.connect(t.Context(), attacker, atProxy, "h2")
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	_, err = io.WriteString(conn, http2.ClientPreface)
	require.NoError(t, err)
	framer := http2.NewFramer(conn, conn)
	framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	require.NoError(t, framer.WriteSettings())
	require.NoError(t, framer.WriteWindowUpdate(0, largeBody))
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	fields := []string{":method", "POST", ":scheme", "https", ":authority", "h", ":path", path, "content-length", fmt.Sprint(largeBody)}
	if token := w.attackers[attacker].bearer(); token != "" {
		fields = append(fields, "authorization", "Bearer "+token)
	}
	for i := 0; i < len(fields); i += 2 {
		require.NoError(t, encoder.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]}))
	}
	require.NoError(t, framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(), EndHeaders: true}))
	for range sentBody >> 14 {
		require.NoError(t, framer.WriteData(1, false, make([]byte, 1<<14)))
	}
	var seen []string
	reset := false
	for {
		frame, err := framer.ReadFrame()
		require.NoError(t, err, "after %s", seen)
		switch f := frame.(type) {
		case *http2.SettingsFrame:
			if !f.IsAck() {
				require.NoError(t, framer.WriteSettingsAck())
			}
		case *http2.WindowUpdateFrame:
			if f.StreamID == 1 { // the timing of frames for the connection varies
				seen = append(seen, "window update")
			}
		case *http2.MetaHeadersFrame:
			for _, field := range f.Fields {
				if !slices.Contains(volatileHeaders, http.CanonicalHeaderKey(field.Name)) {
					seen = append(seen, field.Name+": "+field.Value)
				}
			}
		case *http2.DataFrame:
			seen = append(seen, string(f.Data()))
		case *http2.RSTStreamFrame:
			if reset {
				continue // sent before the response was received
			}
			reset = true
			seen = append(seen, "reset "+f.ErrCode.String())
			require.NoError(t, framer.WritePing(false, [8]byte{1}))
		case *http2.GoAwayFrame:
			seen = append(seen, "go away "+f.ErrCode.String())
		case *http2.PingFrame:
			return strings.Join(seen, "\n")
		}
	}
}
