"""Every bound in one place, each with its reason. Sizes in bytes, times in seconds."""

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30

# --- Names ------------------------------------------------------------------------------------
# A name is data inside a sealed record, so only memory bounds it; 16 KiB admits any path (PATH_MAX
# is 4 KiB) with room, and 256 of them still fit in one log entry.
NAME_BYTES_MAX = 16 * KIB

# A message rides in a log entry, beside the names of packs.
MESSAGE_BYTES_MAX = 64 * KIB
# What every reader's 64-bit integers hold.
STEP_MAX = (1 << 63) - 1

# --- Log --------------------------------------------------------------------------------------
# An entry is one small conditional PUT; 4 MiB holds the pack names of a 20 TB checkpoint in 64 MiB packs.
LOG_ENTRY_BYTES_MAX = 4 * MIB
# Names of one log folder; a listing of 4096 names is four S3 pages.
LOG_FOLDER_ENTRIES = 4096
# How long an opening looks for entries that changed, once it has looked at the least: on a local disk, listing 4096 of
# them takes 15 ms, and reading as many 35.
LOG_LOOK_SECONDS = 0.05
# Lost races before a writer gives up: each lost race means that somebody else made progress.
LOG_APPEND_RACES_MAX = 256
# Repeats of the same bytes after a lost answer, with doubling waits of 50 ms .. 5 s: about 30 s.
LOG_APPEND_REPEATS_MAX = 12

# A signed head: three short lines and a few dozen signatures of witnesses.
HEAD_NOTE_BYTES_MAX = 64 * KIB

# Reads that one entry tells of: about 300 bytes each, so that an entry stays below 1 MiB.
READS_PER_ENTRY = 2048
# A signed record of a read. A later version may add to it, and as many as an entry takes still fit.
READ_RECORD_BYTES_MAX = KIB

# A signed statement about a checkpoint, sealed: its JSON has 2 to 8 KB, and one that names a thousand parts still fits.
ATTESTATION_BYTES_MAX = 64 * KIB
# Names of one kind that a statement repeats, and their length: a run's data sets and library versions.
ATTESTED_NAMES_MAX = 32
ATTESTED_NAME_CHARS_MAX = 120
# Signatures of one envelope: those of a release's few signers.
SIGNATURES_MAX = 64
# Statements about one checkpoint that one member may add: signers times refs, of which a release has a few.
ATTESTATIONS_PER_ACTOR_MAX = 64

# Entries of one bundle: 256 of some kilobytes are one read that costs little more than its request.
BUNDLE_ENTRIES = 256
# A range of longer entries has no bundle: from 64 KiB an entry on, reading them together gains little.
BUNDLE_BYTES_MAX = 16 * MIB
# Bundles fetched at once: 64 MiB at most, in general 2.
BUNDLE_READS_AT_ONCE = 4
# A fold snapshot is due when the newest is so many entries behind. Replaying these takes 0.1 to 0.2 s, about what the
# start of a command takes; and each snapshot holds the whole state, so that many of them would be many bytes.
SNAPSHOT_ENTRIES = 1024
# The newest may be damaged, and whoever has listed the one before still wants to read it.
SNAPSHOTS_KEPT = 2
# Snapshots that one opening tries: those kept, and as many that others put there or left.
SNAPSHOTS_TRIED_MAX = 4

# --- Remote storage ---------------------------------------------------------------------------
# One request: this long without an answer, and so many bytes a second at least; a pack then has 94 s.
REMOTE_REQUEST_SECONDS = 30.0
REMOTE_BYTES_PER_SECOND_MIN = MIB
REMOTE_CONNECT_SECONDS = 5.0
# How long a call goes on repeating its request, with doubling waits of 0.1 s .. 5 s. Storage that throttles says so for
# seconds; one that cannot be reached at all is rather a wrong address, and is given up sooner.
REMOTE_PATIENCE_SECONDS = 60.0
REMOTE_CONNECT_PATIENCE_SECONDS = 3.0
# An error's answer, which is a few hundred bytes; a page of a listing holds 1000 names of at most 1 KiB.
REMOTE_ERROR_BYTES_MAX = 64 * KIB
REMOTE_PAGE_BYTES_MAX = 8 * MIB
# What one PUT takes on S3; all that is stored is smaller, so nothing is ever sent in parts.
REMOTE_PUT_BYTES_MAX = 5 * GIB
# Idle connections kept, one for each thread that reads or writes at once.
REMOTE_IDLE_CONNECTIONS_MAX = 64
# An upload in parts, by another tool, that is older than a day has been given up: 5 TiB at 60 MiB/s. Parts that arrive
# while it is aborted outlive that, each at most once.
REMOTE_UPLOAD_SECONDS_MAX = 86_400.0
REMOTE_UPLOAD_ABORTS_MAX = 8

# --- Chunks, packs, pages ---------------------------------------------------------------------
# The largest plaintext that may be one chunk: twice the largest tile, so a reader's buffer is bounded.
CHUNK_BYTES_MAX = 8 * MIB
# Files that cannot be parsed are cut into blocks of this size: uniform, so lengths reveal no more than the file's.
FILE_BLOCK_BYTES = MIB
# Bytes of a tensor or file piece that ride inside the page: a stored chunk costs 72 bytes of sealing, 44 of
# index and 32 of digest, so anything under about 150 bytes is cheaper in line.
INLINE_BYTES_MAX = 128
# One PUT per pack. 64 MiB amortises a request (30 ms at 2 GB/s) and keeps two open packs under the 400 MiB budget.
PACK_BYTES_TARGET = 64 * MIB
# A reader refuses larger packs: offsets and footers stay far from any overflow.
PACK_BYTES_MAX = 4 * GIB
# Pages are cut by name hash at this size on average, so that a changed tensor rewrites one page.
PAGE_BYTES_TARGET = 64 * KIB
PAGE_BYTES_MAX = 4 * MIB
# A tensor's digests stand in its entry up to this many bytes (256 tiles, 256-512 MiB), beyond it in pages of as many:
# every reader reads all entries, and of the pages those that it needs (docs/adr/0008-metadata-pages.md).
ENTRY_DIGEST_BYTES_MAX = 8 * KIB
# Regions of a tensor stand in its entry up to this many (about 55 bytes each), beyond it in pages of as many.
ENTRY_REGIONS_MAX = 64
# Pages of digests and regions that a reader fetches at once: each is a small read, and waits for the storage alone.
PAGE_READS_AT_ONCE = 16
# A training state's plain value stands in its entry up to this size; a larger one is stored in blocks.
VALUE_INLINE_BYTES_MAX = 16 * KIB
# Lists in lists in lists: deeper than any state that means it, shallow enough for every reader's stack.
VALUE_DEPTH_MAX = 100
# A value that `diff` decodes to compare it item by item: decoded it takes some ten times as much.
COMPARED_VALUE_BYTES_MAX = 4 * MIB
# What Python turns into digits and back without being told to (its own guard against quadratic time).
VALUE_DIGITS_MAX = 4300
# Objects read as a whole (bodies, roots, index pieces, reachability lists): 1 GiB names 20 million chunks.
SEALED_OBJECT_BYTES_MAX = GIB

# An index piece of more entries stays in the cache as it is, and is searched: as rows, 3 million take a minute to add.
# Each such piece costs every lookup 5 µs, so small ones become rows, whose number costs none.
INDEX_ROWS_MAX = 1 << 16

# --- Reading ----------------------------------------------------------------------------------
# Ranges closer than this are fetched as one: 64 KiB costs less than a request everywhere.
READ_GAP_BYTES = 64 * KIB
# Bytes fetched beyond those needed, as a fraction of them.
READ_AMPLIFICATION_MAX = 1.1
# One fetch; large enough for sequential speed, small enough that several fit the budget.
READ_BYTES_TARGET = 8 * MIB
# One fetch for a tensor that is read alone: as much as a pack holds, since what lies together is asked for at once.
LAZY_READ_BYTES_MAX = 64 * MIB
# Parts of files that were read in part, kept for the next read: a band is 16 MiB at most, so a few files share it.
FILE_CACHE_BYTES = 64 * MIB
# Memory through which ranks of one host share reads, for each: the threads of a rank look that far ahead.
SHARED_READ_BYTES = 64 * MIB
# When no rank of a host has got on for so long, each reads what it needs by itself. A fetch that fails takes less
# (first request, patience, last request): storage that throttles must not be asked by each for all.
SHARED_READ_PATIENCE_SECONDS = 2 * (REMOTE_REQUEST_SECONDS + 2 * READ_BYTES_TARGET / REMOTE_BYTES_PER_SECOND_MIN) + (
    REMOTE_PATIENCE_SECONDS
)
# Links that a path may lead through, as in Linux.
PATH_LINKS_MAX = 40

# --- Remotes ----------------------------------------------------------------------------------
# Threads that read, check and upload at once: each holds a pack, and one connection fills no network.
TRANSFERS_AT_ONCE = 8
# Threads that read from remote storage at once: while some wait for it, others decrypt.
REMOTE_READS_AT_ONCE = 8
# Log entries fetched at once where storage answers slowly: of up to 4 MiB, but nearly all have some kilobytes.
ENTRY_READS_AT_ONCE = 16
# Index blocks that a push holds in memory to ask for many ids at once: of 10 million chunks.
KNOWN_BYTES_MAX = 512 * MIB
# A push that finds its branch moved by others so many times in a row gives up.
PUSH_RACES_MAX = 16

# --- Training ---------------------------------------------------------------------------------
# A rank's share of a tensor under this size rides in its fragment and is joined by the coordinator: norms sharded a
# thousand ways must not become 16-byte chunks.
FRAGMENT_SHARD_BYTES_MAX = 64 * KIB
# All such shares of one rank: 512 KiB of 8960 ranks are 4.4 GiB, which the coordinator streams.
FRAGMENT_INLINE_BYTES_MAX = 512 * KIB
# Fragments that the coordinator fetches at once: 32 of up to 1 MiB; one by one, 8960 would take minutes on an object
# store.
FRAGMENT_READS_AT_ONCE = 32
# A rank gives a sign of life this often, and is lost after this silence: every survivor then knows within 30 s.
RANK_BEAT_SECONDS = 2.0
RANK_SILENCE_SECONDS = 20.0
# One attempt to save or load; a hung storage system surfaces after it.
ATTEMPT_SECONDS = 1800.0
# How long closing, and the end of the process, wait for the save that is under way.
CLOSE_SECONDS = 600.0
# Names listed in one error; the rest is counted.
LISTED_NAMES_MAX = 50

# --- Memory -----------------------------------------------------------------------------------
# Plain and sealed bytes in flight in one commit or checkout; with the interpreter it stays under 400 MiB.
MEMORY_BUDGET_BYTES = 256 * MIB

# --- Sessions ---------------------------------------------------------------------------------
SESSION_HEARTBEAT_SECONDS = 30.0
SESSION_SILENCE_SECONDS = 900.0

# --- Deletion ---------------------------------------------------------------------------------
# The longest time in which a deleted checkpoint is surely kept: 100 years, so that its end is a date.
GRACE_SECONDS_MAX = 100 * 365 * 86_400
# A name, an address and a department.
PERSON_BYTES_MAX = 4 * KIB
# A deleted model can be restored for a day unless somebody says otherwise: then its keys are destroyed for good.
MODEL_GRACE_SECONDS = 86_400
# A sentence and a reference; it stands in a log entry.
HOLD_REASON_BYTES_MAX = 4 * KIB
# Numbers that one checkpoint is told by, and the length of their names: a log entry holds them all.
METRICS_MAX = 64
METRIC_NAME_CHARS_MAX = 64

# --- Lineage ----------------------------------------------------------------------------------
# Parents that one commit declares: the largest merges of published models take a few dozen.
LINEAGE_PARENTS_MAX = 64
# Checkpoints that one walk shows: about 2 MB of text.
LINEAGE_CHECKPOINTS_MAX = 10_000
# A plan of retention lists some 200 bytes for each of a million checkpoints at most.
PLAN_BYTES_MAX = 256 * MIB
# Evidence of a receipt is log entries, each of which tells of thousands of deleted objects.
RECEIPT_BYTES_MAX = 256 * MIB
# A retention that finds its model changed by others between plan and entry so many times in a row gives up.
PLAN_RACES_MAX = 8

# --- Collection -------------------------------------------------------------------------------
# Of what lives in packs, how much may lie beside it unneeded before the emptiest are repacked.
GC_UNUSED_FRACTION = 0.05
# One round: what it copies needs room until the old packs are deleted; 29 bytes an object, and at most 10 a pack, are
# half of a log entry.
GC_REPACK_BYTES_PER_ROUND = 8 * GIB
GC_PACKS_PER_ROUND = 100_000
GC_OBJECTS_PER_ROUND = 60_000
# Deleted objects that one `gc.swept` entry tells of: an interrupted collector deletes at most so many again.
GC_SWEEP_BATCH = 1000
# Index pieces smaller than this that stand one after the other are made one, when there are so many: a cold open then
# reads few objects, and each entry is written anew a few times in its life.
GC_MERGE_PIECE_BYTES_MAX = 8 * MIB
GC_MERGE_PIECES_MIN = 16
# Looks at the sessions that are waited for: so often, at most.
GC_LOOK_SECONDS_MAX = 5.0

# --- Untrusted files --------------------------------------------------------------------------
# The reference implementation of safetensors refuses longer headers.
SAFETENSORS_HEADER_BYTES_MAX = 100_000_000
TENSOR_DIMS_MAX = 64
TENSOR_BYTES_MAX = 1 << 62
# A state dict of 1.3 million tensors pickles to about 200 MB; a hostile one must stop before 256 MiB of objects.
PICKLE_BYTES_MAX = 256 * MIB
PICKLE_OPS_MAX = 50_000_000
PICKLE_DEPTH_MAX = 200
# Values visited when a pickle's tree is walked; shared values count at each visit, so a memo bomb ends here.
PICKLE_VALUES_MAX = 20_000_000
ZIP_MEMBERS_MAX = 4_000_000
# Bytes that the compressed members of one archive may unfold to, all together.
ZIP_INFLATED_BYTES_MAX = 256 * MIB
SYMLINK_BYTES_MAX = 4 * KIB

# --- Files ------------------------------------------------------------------------------------
# A time stamp younger than the file system's tick cannot prove that a file is unchanged. Local Linux file systems
# tick every 4-10 ms; those that keep whole seconds (FAT: 2 s) get the long window.
RACY_WINDOW_NS = 100_000_000
RACY_WINDOW_COARSE_NS = 2_000_000_000
