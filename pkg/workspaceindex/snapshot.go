package workspaceindex

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
)

// A snapshot contains the announcements of one shard. It starts with a line that names the format, followed by blocks:
//
//	length (4 bytes) ─ CRC-32C of the rest (4) ─ kind of block (1) ─ content
//
// The first block is the origin, followed by logical clusters and workspaces in any order, and revisions at the end.
// More blocks of revisions may follow; the last one is valid.
const (
	formatLine = "shardplane workspace index 1\n"

	blockOrigin     = 'o'
	blockClusters   = 'c'
	blockWorkspaces = 'w'
	blockRevisions  = 'r'

	// blockSize is the size from which a block is written. Blocks must be smaller than maxBlock.
	blockSize, maxBlock = 64 << 10, 4 << 20
	blockHeader         = 8
)

var errSnapshot = errors.New("the snapshot is damaged")

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Revision is the revision up to which all objects of a kind are announced.
type Revision struct {
	// Version is the resourceVersion, Data the identity of the shard's data. Each may be empty if there is none.
	Version, Data string
}

// Revisions are the revisions by kind.
type Revisions [kinds]Revision

// Complete reports whether there are revisions of all kinds.
func (r Revisions) Complete() bool {
	return r[LogicalClusters].Version != "" && r[Workspaces].Version != ""
}

// Snapshot is the metadata of a snapshot.
type Snapshot struct {
	// Origin identifies the shard in a format of the writer.
	Origin    []byte
	Revisions Revisions
}

// SnapshotWriter writes the snapshot of a shard.
type SnapshotWriter struct {
	to     *bufio.Writer
	blocks [kinds][]byte
	err    error
}

// NewSnapshotWriter starts a snapshot.
func NewSnapshotWriter(to io.Writer, origin []byte) *SnapshotWriter {
	w := &SnapshotWriter{to: bufio.NewWriterSize(to, blockSize)}
	_, w.err = w.to.WriteString(formatLine)
	w.write(blockOrigin, origin)
	return w
}

// WriteSnapshots writes the announcements of shards, by name, at the time of the call. A reader that continues at a
// revision from before the call misses no change.
func (x *Index) WriteSnapshots(writers map[string]*SnapshotWriter) {
	// They are only collected with the lock held, because writing takes longer.
	x.mu.Lock()
	numbers := x.numbers.Load()
	to := func(shard uint16) *SnapshotWriter { return writers[numbers.shards[shard].name] }
	var clusters []placedNode
	for n := range x.clusters.all {
		if p := n.placement(); p != 0 && to(p.shard()) != nil {
			clusters = append(clusters, placedNode{n, p, n.kind.Load()})
		}
	}
	for n, all := range x.announcements {
		for _, a := range all[1:] {
			if to(a.placement.shard()) != nil {
				clusters = append(clusters, placedNode{n, a.placement, a.kind})
			}
		}
	}
	links := x.allLinks(func(l *link) bool { return to(l.shard) != nil })
	x.mu.Unlock()
	for _, c := range clusters {
		to(c.shard()).cluster(c.node.name, c.placement, c.kind.String(), numbers.phases)
	}
	for _, l := range links {
		to(l.shard).workspace(l, numbers.phases)
	}
}

type placedNode struct {
	node *node
	placement
	kind *typeName
}

func (w *SnapshotWriter) cluster(name logicalcluster.Name, p placement, kind string, phases []corev1alpha1.LogicalClusterPhaseType) {
	b := appendText(w.blocks[LogicalClusters], name.String())
	b = binary.BigEndian.AppendUint64(b, uint64(p))
	b = appendText(b, string(phases[p.phase()]))
	w.blocks[LogicalClusters] = appendText(b, kind)
	w.flush(LogicalClusters, blockSize)
}

const linkTarget, linkMounted = 1, 2

func (w *SnapshotWriter) workspace(l *link, phases []corev1alpha1.LogicalClusterPhaseType) {
	more, flags, target := l.more(), byte(0), ""
	if l.target != nil {
		flags, target = linkTarget, l.target.name.String()
	}
	if more.mounted {
		flags |= linkMounted
	}
	b := w.blocks[Workspaces]
	b = append(b, flags)
	for _, text := range []string{l.parent.name.String(), l.name(), target, string(phases[l.phase]), more.mount} {
		b = appendText(b, text)
	}
	w.blocks[Workspaces] = binary.BigEndian.AppendUint64(b, uint64(more.owner))
	w.flush(Workspaces, blockSize)
}

func appendText(b []byte, text string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(text))), text...)
}

// flush writes the block of a kind if it has at least a size.
func (w *SnapshotWriter) flush(kind Kind, from int) {
	if len(w.blocks[kind]) < from {
		return
	}
	w.write([kinds]byte{LogicalClusters: blockClusters, Workspaces: blockWorkspaces}[kind], w.blocks[kind])
	w.blocks[kind] = w.blocks[kind][:0]
}

func (w *SnapshotWriter) write(kind byte, content []byte) {
	if w.err == nil && len(content) >= maxBlock {
		w.err = fmt.Errorf("a block of %d bytes is too long for a snapshot", len(content))
	}
	if w.err != nil {
		return
	}
	header := binary.BigEndian.AppendUint32(nil, uint32(len(content))) //nolint:gosec // just compared
	sum := crc32.Update(crc32.Checksum([]byte{kind}, castagnoli), castagnoli, content)
	header = append(binary.BigEndian.AppendUint32(header, sum), kind)
	_, _ = w.to.Write(header)
	_, w.err = w.to.Write(content) // or the error of the former write
}

// End completes the snapshot, or adds later revisions up to which nothing has changed.
func (w *SnapshotWriter) End(revisions Revisions) error {
	for kind := range kinds {
		w.flush(kind, 1)
	}
	var b []byte
	for _, revision := range revisions {
		b = appendText(b, revision.Version)
	}
	for _, revision := range revisions {
		b = appendText(b, revision.Data)
	}
	w.write(blockRevisions, b)
	if w.err == nil {
		w.err = w.to.Flush()
	}
	return w.err
}

// ReadSnapshot announces the content of a snapshot for a shard. It fails for damaged snapshots, of which all blocks
// before the damage may have been announced. Damage after the first revisions is ignored, e.g. if the process was killed
// while it wrote later ones.
func (x *Index) ReadSnapshot(shard string, from io.Reader) (Snapshot, error) {
	r := snapshotReader{from: bufio.NewReaderSize(from, blockSize)}
	line := make([]byte, len(formatLine))
	if _, err := io.ReadFull(r.from, line); err != nil || string(line) != formatLine {
		return Snapshot{}, fmt.Errorf("%w: it does not begin with %q", errSnapshot, formatLine[:len(formatLine)-1])
	}
	kind, content, err := r.next()
	if err != nil || kind != blockOrigin {
		return Snapshot{}, errors.Join(errSnapshot, err)
	}
	snapshot, ended := Snapshot{Origin: bytes.Clone(content)}, false
	for {
		kind, content, err := r.next()
		switch {
		case err != nil && ended:
			return snapshot, nil // the snapshot is complete
		case err != nil:
			return Snapshot{}, errors.Join(errSnapshot, err)
		}
		text := reader{rest: content}
		switch {
		case kind == blockRevisions:
			snapshot.Revisions = readRevisions(&text)
			ended = true
		case kind == blockClusters && !ended:
			x.readClusters(shard, &text)
		case kind == blockWorkspaces && !ended:
			x.readWorkspaces(shard, &text)
		default:
			text.failed = true
		}
		if text.failed {
			return Snapshot{}, fmt.Errorf("%w: unexpected content of a block %q", errSnapshot, kind)
		}
	}
}

func readRevisions(from *reader) (revisions Revisions) {
	for kind := range kinds {
		revisions[kind].Version = from.text()
	}
	for kind := range kinds {
		revisions[kind].Data = from.text()
	}
	return revisions
}

func (x *Index) readClusters(shard string, from *reader) {
	x.mu.Lock()
	defer x.mu.Unlock()
	s := x.shard(shard)
	for len(from.rest) > 0 {
		name, p := logicalcluster.Name(from.text()), placement(from.uint64())
		phase, kind := x.phase(corev1alpha1.LogicalClusterPhaseType(from.text())), from.text()
		if from.failed || p&placementPresent == 0 || p.claim() > int(claimsOwn) || name == "" {
			from.failed = true
			return
		}
		x.announce(name, s, p.on(s.number, phase), kind)
	}
}

func (x *Index) readWorkspaces(shard string, from *reader) {
	x.mu.Lock()
	defer x.mu.Unlock()
	s := x.shard(shard)
	for len(from.rest) > 0 {
		flags := from.bytes(1)
		w := Workspace{Parent: logicalcluster.Name(from.text()), Name: from.text(), Cluster: logicalcluster.Name(from.text())}
		w.Phase, w.Mount = corev1alpha1.LogicalClusterPhaseType(from.text()), from.text()
		w.Owner = Owner(from.uint64())
		if from.failed || flags[0]&linkTarget != 0 != (w.Cluster != "") || w.Parent == "" || w.Name == "" {
			from.failed = true
			return
		}
		w.Mounted = flags[0]&linkMounted != 0
		x.setWorkspace(s, w)
	}
}

// on returns the placement on another shard, with the number of the phase in this index.
func (p placement) on(shard uint16, phase uint8) placement {
	const replaced = math.MaxUint16<<shardShift | math.MaxUint8<<phaseShift
	return p&^replaced | placement(shard)<<shardShift | placement(phase)<<phaseShift
}

type snapshotReader struct {
	from    *bufio.Reader
	content []byte
}

// next returns the next block. The content is valid until the next call.
func (r *snapshotReader) next() (kind byte, content []byte, err error) {
	header := make([]byte, blockHeader+1)
	if _, err := io.ReadFull(r.from, header); err != nil {
		return 0, nil, err
	}
	size, sum, kind := binary.BigEndian.Uint32(header), binary.BigEndian.Uint32(header[4:]), header[blockHeader]
	if size >= maxBlock {
		return 0, nil, fmt.Errorf("%w: a block of %d bytes", errSnapshot, size)
	}
	if int(size) > cap(r.content) {
		r.content = make([]byte, size)
	}
	content = r.content[:size]
	if _, err := io.ReadFull(r.from, content); err != nil {
		return 0, nil, err
	}
	if crc32.Update(crc32.Checksum([]byte{kind}, castagnoli), castagnoli, content) != sum {
		return 0, nil, fmt.Errorf("%w: checksum mismatch", errSnapshot)
	}
	return kind, content, nil
}

type reader struct {
	rest   []byte
	failed bool
}

func (r *reader) bytes(n uint64) []byte {
	if n > uint64(len(r.rest)) {
		r.failed, r.rest = true, nil
		return make([]byte, min(n, 8)) // the result is not used
	}
	b := r.rest[:n]
	r.rest = r.rest[n:]
	return b
}

func (r *reader) text() string {
	size, n := binary.Uvarint(r.rest)
	if n <= 0 {
		r.failed, r.rest = true, nil
		return ""
	}
	r.rest = r.rest[n:]
	if b := r.bytes(size); !r.failed {
		return string(b)
	}
	return ""
}

func (r *reader) uint64() uint64 { return binary.BigEndian.Uint64(r.bytes(8)) }
