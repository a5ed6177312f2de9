; The thread pool of the CPU, as LLVM IR, so that no C compiler is needed.
;
; One job at a time: a kernel and a number of chunks.  The participants are the caller (number 0) and the
; workers (1, 2, ...).  Each has a range of chunks of its own, claims from it first, so that the same data
; meets the same core again when a kernel repeats, and then takes from the ranges of the others.  A claim is
; a quarter of what is left in the range, at least one chunk.
;
; Completion counts chunks, not workers: a worker that sleeps through a job delays nobody, and one that
; comes late finds only empty ranges, or claims chunks of the next job.  It reads the job's fields only
; after a claim succeeded, and no job ends while a claimed chunk is not done, so it never sees the fields of
; one job with chunks of another.
;
; Waiting is spinning for a little while, then sleeping on a futex.  A sleeper announces itself and then
; looks once more; a waker publishes and then looks for sleepers.  These four accesses are sequentially
; consistent, so at least one of the two sees the other.
;
; pool.py appends what depends on the target: `@relax` (the processor's hint for spin loops) and
; `@futex_number`.  It also owns the memory of the pool and zeroes it.

%pool = type {
  ; line 0: written once per job by the caller
  ptr,          ;  0: the kernel: void (ptr buffers, ptr variables, i64 begin, i64 end)
  ptr,          ;  1: buffers
  ptr,          ;  2: variables
  i64,          ;  3: number of chunks
  i64,          ;  4: number of participants, set before the first job
  i64,          ;  5: turns to spin before sleeping, set before the first job
  [2 x i64],    ;  6
  ; line 1: whether a job is running
  i32,          ;  7: 0 or 1
  i32,          ;  8: 1: workers return when they find no work
  [14 x i32],   ;  9
  ; line 2: the futex of the workers
  i32,          ; 10: generation, counts jobs
  i32,          ; 11: workers that sleep, or are about to
  [14 x i32],   ; 12
  ; line 3: the futex of the caller
  i64,          ; 13: chunks that are done
  i32,          ; 14: 1 when the caller sleeps, or is about to
  i32,          ; 15: 1 when the job is done
  [12 x i32],   ; 16
  ; line 4 and on, one line per participant
  [0 x %range]  ; 17
}

; A range of chunks in one word: the end in the high half, the next chunk in the low half.
%range = type { i64, [7 x i64] }

declare i64 @syscall(i64, ...)
declare i64 @llvm.umax.i64(i64, i64)

; Claim and run chunks until no range has any; say whether there was any.
define internal i1 @work(ptr %pool, i64 %me) {
entry:
  %parts.at = getelementptr %pool, ptr %pool, i64 0, i32 4
  %parts = load i64, ptr %parts.at
  br label %ranges

ranges:                                       ; for each participant, starting with this one
  %turn = phi i64 [ 0, %entry ], [ %turn.next, %next ]
  %any = phi i1 [ false, %entry ], [ %any.now, %next ]
  %sum = add i64 %me, %turn
  %wraps = icmp uge i64 %sum, %parts
  %wrapped = sub i64 %sum, %parts
  %victim = select i1 %wraps, i64 %wrapped, i64 %sum
  %range = getelementptr %pool, ptr %pool, i64 0, i32 17, i64 %victim
  %first = load atomic i64, ptr %range acquire, align 8
  br label %claim

claim:                                        ; while the range has chunks
  %any.now = phi i1 [ %any, %ranges ], [ %any.now, %retry ], [ true, %run ]
  %word = phi i64 [ %first, %ranges ], [ %seen, %retry ], [ %again, %run ]
  %begin = and i64 %word, 4294967295
  %end = lshr i64 %word, 32
  %empty = icmp uge i64 %begin, %end
  br i1 %empty, label %next, label %try

try:
  %left = sub i64 %end, %begin
  %quarter = lshr i64 %left, 2
  %count = call i64 @llvm.umax.i64(i64 %quarter, i64 1)
  %claimed = add i64 %word, %count            ; stays within the low half: begin + count <= end
  %swap = cmpxchg ptr %range, i64 %word, i64 %claimed acq_rel acquire, align 8
  %seen = extractvalue { i64, i1 } %swap, 0
  %ours = extractvalue { i64, i1 } %swap, 1
  br i1 %ours, label %run, label %retry

retry:
  br label %claim

run:
  %kernel.at = getelementptr %pool, ptr %pool, i64 0, i32 0
  %buffers.at = getelementptr %pool, ptr %pool, i64 0, i32 1
  %variables.at = getelementptr %pool, ptr %pool, i64 0, i32 2
  %chunks.at = getelementptr %pool, ptr %pool, i64 0, i32 3
  %kernel = load ptr, ptr %kernel.at
  %buffers = load ptr, ptr %buffers.at
  %variables = load ptr, ptr %variables.at
  %chunks = load i64, ptr %chunks.at
  %stop = add i64 %begin, %count
  call void %kernel(ptr %buffers, ptr %variables, i64 %begin, i64 %stop)
  ; Read the range before the chunks are reported: after the last report the job may end, and the range be
  ; reused.  What is read then is a valid word all the same; this order merely saves a line transfer.
  %again = load atomic i64, ptr %range acquire, align 8
  call void @report(ptr %pool, i64 %count, i64 %chunks)
  br label %claim

next:
  %turn.next = add i64 %turn, 1
  %last = icmp eq i64 %turn.next, %parts
  br i1 %last, label %return, label %ranges

return:
  ret i1 %any.now
}

; Count chunks as done; whoever counts the last one wakes the caller if it sleeps.
define internal void @report(ptr %pool, i64 %count, i64 %chunks) {
entry:
  %done.at = getelementptr %pool, ptr %pool, i64 0, i32 13
  %before = atomicrmw add ptr %done.at, i64 %count acq_rel, align 8
  %after = add i64 %before, %count
  %complete = icmp eq i64 %after, %chunks
  br i1 %complete, label %finish, label %return

finish:
  %finished.at = getelementptr %pool, ptr %pool, i64 0, i32 15
  %waits.at = getelementptr %pool, ptr %pool, i64 0, i32 14
  %old = atomicrmw xchg ptr %finished.at, i32 1 seq_cst, align 4
  %waits = load atomic i32, ptr %waits.at seq_cst, align 4
  %asleep = icmp ne i32 %waits, 0
  br i1 %asleep, label %wake, label %return

wake:
  call void @wake(ptr %finished.at, i64 1)
  br label %return

return:
  ret void
}

; Wake up to `%count` sleepers (129: FUTEX_WAKE | FUTEX_PRIVATE_FLAG).
define internal void @wake(ptr %word, i64 %count) {
  %number = load i64, ptr @futex_number
  %result = call i64 (i64, ...) @syscall(i64 %number, ptr %word, i64 129, i64 %count)
  ret void
}

; Wait until the word is no longer `%value`: spin, then sleep with `%sleepers` raised by one (128:
; FUTEX_WAIT | FUTEX_PRIVATE_FLAG).
define internal void @wait(ptr %pool, ptr %word, i32 %value, ptr %sleepers) {
entry:
  %limit.at = getelementptr %pool, ptr %pool, i64 0, i32 5
  %limit = load i64, ptr %limit.at
  br label %look

look:
  %turn = phi i64 [ 0, %entry ], [ %turn.next, %spin ]
  %now = load atomic i32, ptr %word acquire, align 4
  %changed = icmp ne i32 %now, %value
  br i1 %changed, label %return, label %test

test:
  %spent = icmp uge i64 %turn, %limit
  br i1 %spent, label %announce, label %spin

spin:
  call void @relax()
  %turn.next = add i64 %turn, 1
  br label %look

announce:
  %up = atomicrmw add ptr %sleepers, i32 1 seq_cst, align 4
  br label %check

check:
  %current = load atomic i32, ptr %word seq_cst, align 4
  %done = icmp ne i32 %current, %value
  br i1 %done, label %awake, label %sleep

sleep:                                        ; returns at once if the word changed, or for no reason
  %number = load i64, ptr @futex_number
  %value64 = zext i32 %value to i64
  %result = call i64 (i64, ...) @syscall(i64 %number, ptr %word, i64 128, i64 %value64, ptr null)
  br label %check

awake:
  %down = atomicrmw sub ptr %sleepers, i32 1 seq_cst, align 4
  br label %return

return:
  ret void
}

; Run a kernel's chunks, by this thread and the workers; return when all are done.  When the pool has a job
; already (another thread's, or the one that this call is part of), this thread runs them alone.
define void @pool_run(ptr %pool, ptr %kernel, ptr %buffers, ptr %variables, i64 %chunks) {
entry:
  %busy.at = getelementptr %pool, ptr %pool, i64 0, i32 7
  %busy = atomicrmw xchg ptr %busy.at, i32 1 acquire, align 4
  %free = icmp eq i32 %busy, 0
  br i1 %free, label %publish, label %alone

alone:
  call void %kernel(ptr %buffers, ptr %variables, i64 0, i64 %chunks)
  ret void

publish:
  %kernel.at = getelementptr %pool, ptr %pool, i64 0, i32 0
  %buffers.at = getelementptr %pool, ptr %pool, i64 0, i32 1
  %variables.at = getelementptr %pool, ptr %pool, i64 0, i32 2
  %chunks.at = getelementptr %pool, ptr %pool, i64 0, i32 3
  %parts.at = getelementptr %pool, ptr %pool, i64 0, i32 4
  %generation.at = getelementptr %pool, ptr %pool, i64 0, i32 10
  %sleepers.at = getelementptr %pool, ptr %pool, i64 0, i32 11
  %done.at = getelementptr %pool, ptr %pool, i64 0, i32 13
  %waits.at = getelementptr %pool, ptr %pool, i64 0, i32 14
  %finished.at = getelementptr %pool, ptr %pool, i64 0, i32 15
  store ptr %kernel, ptr %kernel.at
  store ptr %buffers, ptr %buffers.at
  store ptr %variables, ptr %variables.at
  store i64 %chunks, ptr %chunks.at
  store atomic i64 0, ptr %done.at monotonic, align 8
  store atomic i32 0, ptr %finished.at monotonic, align 4
  %parts = load i64, ptr %parts.at
  br label %divide

divide:                                       ; participant t gets the t-th part of [0, chunks)
  %t = phi i64 [ 0, %publish ], [ %t.next, %divide ]
  %begin = phi i64 [ 0, %publish ], [ %end, %divide ]
  %t.next = add i64 %t, 1
  %scaled = mul i64 %chunks, %t.next
  %end = udiv i64 %scaled, %parts
  %high = shl i64 %end, 32
  %word = or i64 %high, %begin
  %range = getelementptr %pool, ptr %pool, i64 0, i32 17, i64 %t
  store atomic i64 %word, ptr %range release, align 8
  %last = icmp eq i64 %t.next, %parts
  br i1 %last, label %announce, label %divide

announce:
  %old = atomicrmw add ptr %generation.at, i32 1 seq_cst, align 4
  %sleepers = load atomic i32, ptr %sleepers.at seq_cst, align 4
  %any = icmp ne i32 %sleepers, 0
  br i1 %any, label %wake, label %help

wake:
  %others = sub i64 %chunks, 1                ; no more workers than there are chunks for
  call void @wake(ptr %generation.at, i64 %others)
  br label %help

help:
  %did = call i1 @work(ptr %pool, i64 0)
  call void @wait(ptr %pool, ptr %finished.at, i32 0, ptr %waits.at)
  store atomic i32 0, ptr %busy.at release, align 4
  ret void
}

; The life of a worker; returns after pool_stop.
define void @pool_work(ptr %pool, i64 %me) {
entry:
  %stopped.at = getelementptr %pool, ptr %pool, i64 0, i32 8
  %generation.at = getelementptr %pool, ptr %pool, i64 0, i32 10
  %sleepers.at = getelementptr %pool, ptr %pool, i64 0, i32 11
  br label %loop

loop:                                         ; generation first, then work: no job is missed in between
  %generation = load atomic i32, ptr %generation.at acquire, align 4
  %any = call i1 @work(ptr %pool, i64 %me)
  br i1 %any, label %loop, label %idle

idle:
  %stopped = load atomic i32, ptr %stopped.at acquire, align 4
  %stop = icmp ne i32 %stopped, 0
  br i1 %stop, label %return, label %rest

rest:
  call void @wait(ptr %pool, ptr %generation.at, i32 %generation, ptr %sleepers.at)
  br label %loop

return:
  ret void
}

; Tell the workers to return when they are idle.
define void @pool_stop(ptr %pool) {
  %stopped.at = getelementptr %pool, ptr %pool, i64 0, i32 8
  %generation.at = getelementptr %pool, ptr %pool, i64 0, i32 10
  store atomic i32 1, ptr %stopped.at release, align 4
  %old = atomicrmw add ptr %generation.at, i32 1 seq_cst, align 4
  call void @wake(ptr %generation.at, i64 2147483647)
  ret void
}
